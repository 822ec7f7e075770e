// Clusters as text: parses "2x H100-80G:8, ib 400G", and writes a cluster.toml.

#include "../../core/require_usage.h"
#include "cluster_names.h"
#include "device_tables.h"
#include "units.h"

#include <redco/cluster.h>
#include <redco/formats.h>

#include <sstream>

namespace redco {

namespace plan {

namespace {

// "2x H100-80G:8" in its parts.
struct HostWords {
  std::string device;
  int64_t count = 1, devices = 1;
  bool has_numbers = false;
};

HostWords host_words(const std::string& item, const std::string& where) {
  HostWords words{.device = item};
  if (size_t times = item.find('x'); times != std::string::npos && times > 0) {
    std::string before = trimmed(item.substr(0, times));
    bool is_count = before.find_first_not_of("0123456789-.") == std::string::npos;
    if (is_count && !before.empty()) {
      auto count = whole_number(before);
      require_usage(count && *count <= 10'000'000, where, ": '", before,
                    "' hosts: expected a number from 1 to 10,000,000");
      words = {trimmed(item.substr(times + 1)), *count, 1, true};
    }
  }
  if (size_t colon = words.device.find(':'); colon != std::string::npos) {
    std::string after = trimmed(words.device.substr(colon + 1));
    auto devices = whole_number(after);
    require_usage(devices && *devices <= 10'000'000, where, ": '", after,
                  "' devices of a host: expected a number from 1 to 10,000,000");
    words.device = trimmed(words.device.substr(0, colon));
    words.devices = *devices;
    words.has_numbers = true;
  }
  return words;
}

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += static_cast<unsigned char>(c) < 32 ? ' ' : c;
  }
  return result + "\"";
}

std::string device_text(const DeviceFacts& device) {
  if (auto listed = find_device(device.name); listed && *listed == device)
    return quoted(device.name);
  std::string flops;
  for (const auto& [dtype, rate] : device.flops)
    flops += (flops.empty() ? "" : ", ") + name_of(dtype) + " = " + number_text(rate);
  std::string text = "{ name = " + quoted(device.name) + ", kind = \"" + name_of(device.kind) +
                     "\", memory = \"" + std::to_string(device.memory) + " B\", bandwidth = \"" +
                     number_text(device.bandwidth) + " B/s\", flops = { " + flops + " }";
  text += ", host_bandwidth = \"" + number_text(device.host_bandwidth) +
          " B/s\", matmul_share = " + number_text(device.matmul_share);
  if (device.tf32 > 0) text += ", tf32 = " + number_text(device.tf32);
  if (!device.link.empty()) text += ", link = " + quoted(device.link);
  return text + " }";
}

std::string link_text(const LinkFacts& link) {
  if (auto listed = find_link(link.name); listed && *listed == link) return quoted(link.name);
  return "{ name = " + quoted(link.name) + ", bandwidth = \"" + number_text(link.bandwidth) +
         " B/s\", share = " + number_text(link.share) +
         ", latency_us = " + number_text(link.latency_us) +
         ", hop_us = " + number_text(link.hop_us) +
         ", small_latency_us = " + number_text(link.small_latency_us) +
         ", small_hop_us = " + number_text(link.small_hop_us) + " }";
}

}  // namespace

}  // namespace plan

using namespace plan;

ClusterSpec ClusterSpec::from_text(const std::string& text) {
  const std::string where = "--servers \"" + text + "\"";
  ClusterSpec cluster;
  std::istringstream items(text);
  for (std::string part; std::getline(items, part, ',');) {
    std::string item = trimmed(part);
    require_usage(!item.empty(), where, ": there is nothing between two commas");
    HostWords words = host_words(item, where);
    auto network = words.has_numbers ? std::nullopt : find_link(item);
    if (network) {
      require_usage(!cluster.network, where, ": there are two networks");
      cluster.network = NetworkFacts{.link = *network};
      continue;
    }
    auto device = find_device(words.device);
    if (!device) {
      bool is_like_link = !words.has_numbers && nearest(words.device, device_names()).empty() &&
                          !nearest(words.device, link_names()).empty();
      require_usage(false, where, ": ",
                    is_like_link ? unknown_link(words.device) : unknown_device(words.device));
    }
    HostGroup group{.count = words.count, .devices = words.devices, .device = *device};
    group.link = *find_link(device->link);
    cluster.hosts.push_back(std::move(group));
  }
  require_usage(!cluster.hosts.empty(), where,
                ": there are no hosts; write hosts x device : devices of a host, such as "
                "\"2x H100-80G:8, ib 400G\"");
  check_size(cluster, where);
  require_usage(cluster.n_hosts() == 1 || cluster.network, where, ": there are ", cluster.n_hosts(),
                " hosts: add the network between them, such as \", ib 400G\"");
  cluster.reserve = default_reserve(cluster.device().kind);
  return cluster;
}

std::string ClusterSpec::to_toml() const {
  std::ostringstream text;
  text << "format = " << cluster_format << "\n\n";
  for (const HostGroup& group : hosts) {
    text << "[[hosts]]\ncount = " << group.count << "\ndevices = " << group.devices
         << "\ndevice = " << device_text(group.device) << "\n";
    if (!group.link.name.empty()) text << "link = " << link_text(group.link) << "\n";
    if (group.cores > 0) text << "cores = " << group.cores << "\n";
    if (group.price_per_hour > 0)
      text << "price_per_hour = " << number_text(group.price_per_hour) << "\n";
    text << "\n";
  }
  if (network)
    text << "[network]\nlink = " << link_text(network->link) << "\nper = \""
         << (network->is_per_host ? "host" : "device")
         << "\"\noversubscription = " << number_text(network->oversubscription) << "\n\n";
  text << "[reserve]\ncontext = \"" << reserve.context << " B\"\ngroup = \"" << reserve.group
       << " B\"\nworkspace = \"" << reserve.workspace << " B\"\n";
  if (measured.is_empty()) return text.str();
  text << "\n[measured]\n";
  if (measured.bandwidth) text << "bandwidth = " << number_text(*measured.bandwidth) << "\n";
  if (measured.launch_us) text << "launch_us = " << number_text(*measured.launch_us) << "\n";
  for (const auto& [kind, by_dtype] : measured.products)
    for (const auto& [dtype, efficiency] : by_dtype) {
      std::string points;
      for (auto [size, share] : efficiency.points)
        points +=
            (points.empty() ? "[" : ", [") + number_text(size) + ", " + number_text(share) + "]";
      text << name_of(kind) << "." << name_of(dtype) << " = [" << points << "]\n";
    }
  for (const auto& [name, link] : measured.collective)
    text << "collective." << quoted(name) << " = { latency_us = " << number_text(link.latency_us)
         << ", hop_us = " << number_text(link.hop_us) << ", share = " << number_text(link.share)
         << " }\n";
  return text.str();
}

}  // namespace redco
