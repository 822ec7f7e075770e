// Facts that follow from the description of a cluster.

#include "../../core/require_usage.h"
#include "cluster_names.h"
#include "device_tables.h"

#include <redco/cluster.h>

#include <ATen/Context.h>

#include <algorithm>
#include <cmath>
#include <sstream>

namespace redco {

using namespace plan;

DeviceFacts::Peak DeviceFacts::peak(c10::ScalarType dtype) const {
  if (dtype == c10::kFloat8_e5m2) dtype = c10::kFloat8_e4m3fn;  // the name that the table uses
  auto listed = flops.find(dtype);
  bool is_listed = listed != flops.end();
  bool is_single = dtype == c10::ScalarType::Float || !is_listed;
  if (is_single && tf32 > 0 && at::globalContext().allowTF32CuBLAS()) return {tf32, is_listed};
  if (!is_listed) listed = flops.find(c10::ScalarType::Float);
  require(listed != flops.end(), "the device ", name, " has no figure for float32 products");
  return {listed->second, is_listed};
}

double Efficiency::at(double size) const {
  if (points.empty()) return 1;
  if (size <= points.front().first) return points.front().second;
  for (size_t i = 1; i < points.size(); ++i) {
    auto [to, high] = points[i];
    auto [from, low] = points[i - 1];
    if (size > to) continue;
    return low + (high - low) * std::log(size / from) / std::log(to / from);
  }
  return points.back().second;
}

int64_t ClusterSpec::n_hosts() const {
  int64_t n = 0;
  for (const HostGroup& group : hosts) n += group.count;
  return n;
}

int64_t ClusterSpec::n_devices() const {
  int64_t n = 0;
  for (const HostGroup& group : hosts) n += group.count * group.devices;
  return n;
}

std::string ClusterSpec::text() const {
  std::ostringstream text;
  for (const HostGroup& group : hosts) {
    if (text.tellp() > 0) text << " + ";
    if (group.count > 1) text << group.count << " x ";
    text << group.devices << " " << group.device.name;
  }
  std::string links;
  auto add = [&](const std::string& name) {
    if (!name.empty()) links += (links.empty() ? "" : ", ") + name;
  };
  for (const HostGroup& group : hosts)
    if (group.devices > 1 && links.find(group.link.name) == std::string::npos) add(group.link.name);
  if (network) add(network->link.name);
  return text.str() + (links.empty() ? "" : " (" + links + ")");
}

DeviceFacts ClusterSpec::device() const {
  require(!hosts.empty(), "the cluster has no hosts");
  std::optional<DeviceFacts> least;
  for (const HostGroup& group : hosts) {
    DeviceFacts each = group.device;
    if (each.kind == DeviceFacts::cpu) {
      each.memory /= group.devices;
      each.bandwidth /= double(group.devices);
      for (auto& [dtype, flops] : each.flops) flops /= double(group.devices);
    }
    if (!least) {
      least = each;
      continue;
    }
    if (each.name != least->name && each.peak(c10::kFloat).flops < least->peak(c10::kFloat).flops)
      least->name = each.name;
    if (each.kind == DeviceFacts::cpu) least->kind = each.kind;
    least->memory = std::min(least->memory, each.memory);
    least->bandwidth = std::min(least->bandwidth, each.bandwidth);
    least->host_bandwidth = std::min(least->host_bandwidth, each.host_bandwidth);
    least->tf32 = std::min(least->tf32, each.tf32);
    std::map<c10::ScalarType, double> common;
    for (const auto& [dtype, flops] : least->flops)
      if (each.flops.count(dtype) > 0) common[dtype] = std::min(flops, each.flops.at(dtype));
    least->flops = std::move(common);
  }
  return *std::move(least);
}

int64_t ClusterSpec::devices_per_host() const {
  int64_t least = hosts.empty() ? 0 : hosts.front().devices;
  for (const HostGroup& group : hosts) least = std::min(least, group.devices);
  return least;
}

bool ClusterSpec::overlaps_collectives() const {
  return std::all_of(hosts.begin(), hosts.end(), [](const HostGroup& group) {
    return group.device.kind != DeviceFacts::cpu || group.cores > group.devices;
  });
}

std::optional<double> ClusterSpec::price(double seconds) const {
  double per_hour = 0;
  for (const HostGroup& group : hosts) {
    if (group.price_per_hour == 0) return std::nullopt;
    per_hour += double(group.count) * group.price_per_hour;
  }
  return per_hour * seconds / 3600;
}

std::vector<std::string> ClusterSpec::notes() const {
  std::vector<std::string> notes;
  auto differs = [&](auto&& fact) {
    return std::any_of(hosts.begin(), hosts.end(),
                       [&](const HostGroup& each) { return fact(each) != fact(hosts.front()); });
  };
  if (differs([](const HostGroup& each) { return each.device.name; })) {
    std::string names;
    for (const HostGroup& group : hosts) names += (names.empty() ? "" : ", ") + group.device.name;
    notes.push_back("the hosts have several kinds of devices: " + names +
                    "; the plan uses the least memory and the lowest rates of them");
  }
  if (differs([](const HostGroup& each) { return each.devices; }))
    notes.push_back(
        "the hosts have different numbers of devices; groups of processes are placed "
        "as if all had " +
        std::to_string(devices_per_host()));
  if (measured.is_empty())
    notes.emplace_back("times use built-in constants: the cluster has no [measured]");
  return notes;
}

ClusterSpec ClusterSpec::with_devices(int64_t n) const {
  require_usage(n > 0 && n <= most_devices, "the number of devices must be from 1 to ",
                most_devices, ", got ", n);
  if (n == n_devices()) return *this;
  ClusterSpec result = *this;
  if (hosts.size() > 1) {
    require_usage(n < n_devices(), "the cluster has ", n_devices(), " devices of several kinds, ",
                  "got ", n, " devices: describe the cluster that has them");
    result.hosts.clear();
    int64_t left = n;
    for (const HostGroup& group : hosts) {
      HostGroup part = group;
      part.count = std::min(group.count, left / group.devices);
      left -= part.count * part.devices;
      if (part.count > 0) result.hosts.push_back(part);
    }
    require_usage(left == 0, n, " devices do not fill hosts of ", text());
    return result;
  }
  HostGroup& group = result.hosts.front();
  if (n <= group.devices) {
    double share = double(n) / double(group.devices);
    // The price of CPUs is that of their whole host, for any number of processes. Of a host with
    // other devices a part can be rented.
    if (group.device.kind != DeviceFacts::cpu) group.price_per_hour *= share;
    group.count = 1;
    group.devices = n;
    return result;
  }
  int64_t below = n / group.devices * group.devices;
  require_usage(n == below, n, " devices do not fill hosts of ", group.devices, ": use ", below,
                " or ", below + group.devices);
  group.count = n / group.devices;
  require_usage(group.count == 1 || network, n, " devices are ", group.count,
                " hosts: describe the network between them, such as \", ib 400G\"");
  return result;
}

}  // namespace redco
