// Reads a cluster.toml.

#define TOML_HEADER_ONLY 1
#include "../../core/require_usage.h"
#include "cluster_names.h"
#include "device_tables.h"
#include "units.h"

#include <redco/cluster.h>
#include <redco/formats.h>

#include <toml++/toml.h>

#include <cmath>
#include <fstream>
#include <set>
#include <sstream>

namespace redco {

namespace plan {

namespace {

// A table of the file, with its allowed keys.
class Section {
 public:
  // `path` is the section's name in messages, with a point at its end, or empty.
  Section(const toml::table& table, const std::string& file, std::string path,
          const std::set<std::string>& keys)
      : table_(table), file_(file), path_(std::move(path)) {
    for (const auto& [key, node] : table) {
      std::string name(key.str());
      if (keys.count(name) > 0) continue;
      std::string near = nearest(name, keys), known;
      for (const std::string& each : keys) known += (known.empty() ? "" : ", ") + each;
      refuse(node, "there is no key '", path_, name, "'",
             near.empty() ? "; there are: " + known : "; did you mean '" + path_ + near + "'?");
    }
  }

  const std::string& file() const { return file_; }
  const toml::table& table() const { return table_; }
  std::string name(std::string_view key) const { return path_ + std::string(key); }
  const toml::node* find(std::string_view key) const { return table_.get(key); }

  template <class... Args>
  [[noreturn]] void refuse(const toml::node& node, const Args&... args) const {
    require_usage(false, file_, ":", node.source().begin.line, ": ", args...);
    std::abort();
  }
  template <class... Args>
  [[noreturn]] void expect(std::string_view key, const toml::node& node,
                           const Args&... args) const {
    refuse(node, "'", path_, key, "': expected ", args...);
  }

  // Returns a number, which must be in a range. None if there is no such key.
  std::optional<double> number(std::string_view key, double least, double most,
                               const std::string& words) const {
    const toml::node* node = find(key);
    if (node == nullptr) return std::nullopt;
    return number_of(key, *node, least, most, words);
  }
  double number_of(std::string_view key, const toml::node& node, double least, double most,
                   const std::string& words) const {
    auto value = node.is_string() ? std::nullopt : node.value<double>();
    if (!value || node.is_boolean() || !(*value >= least && *value <= most))
      expect(key, node, words);
    return *value;
  }
  std::optional<int64_t> whole(std::string_view key) const {
    constexpr double most = 1e7;
    const toml::node* node = find(key);
    if (node == nullptr) return std::nullopt;
    if (!node->is_integer()) expect(key, *node, "a whole number");
    return int64_t(number_of(key, *node, 1, most, "a whole number from 1 to 10,000,000"));
  }
  std::optional<std::string> text(std::string_view key) const {
    const toml::node* node = find(key);
    if (node == nullptr) return std::nullopt;
    if (!node->is_string()) expect(key, *node, "a string");
    return node->value<std::string>();
  }
  // "80 GiB", or a number of GiB.
  std::optional<int64_t> bytes(std::string_view key) const {
    constexpr double gib = 1024.0 * 1024 * 1024, most = 9e18;
    const toml::node* node = find(key);
    if (node == nullptr) return std::nullopt;
    auto value = node->is_string() ? plan::bytes(**node->as_string()) : std::nullopt;
    if (node->is_number())
      value = gib * number_of(key, *node, 0, most / gib, "GiB, or bytes such as \"80 GiB\"");
    if (!value || *value > most) expect(key, *node, "bytes such as \"80 GiB\"");
    return std::llround(*value);
  }
  std::optional<double> rate(std::string_view key) const {
    const toml::node* node = find(key);
    if (node == nullptr) return std::nullopt;
    auto value = node->is_string() ? bytes_per_second(**node->as_string()) : std::nullopt;
    if (!value || *value <= 0) expect(key, *node, "a rate such as \"936 GB/s\"");
    return value;
  }

 private:
  const toml::table& table_;
  const std::string& file_;
  std::string path_;
};

constexpr double most_flops = 1e18, most_us = 1e7;

DeviceFacts read_device(const Section& host) {
  const toml::node* node = host.find("device");
  if (node == nullptr) host.refuse(host.table(), "the key '", host.name("device"), "' is missing");
  if (node->is_string()) {
    std::string name(**node->as_string());
    if (auto device = find_device(name)) return *device;
    host.refuse(*node, unknown_device(name));
  }
  if (!node->is_table()) host.expect("device", *node, "a name or a table");
  Section given(*node->as_table(), host.file(), host.name("device."),
                {"name", "like", "kind", "memory", "bandwidth", "host_bandwidth", "flops",
                 "matmul_share", "tf32", "link"});
  DeviceFacts device{.name = "device"};
  if (auto like = given.text("like")) {
    auto found = find_device(*like);
    if (!found) given.refuse(*given.find("like"), unknown_device(*like));
    device = *found;
  }
  if (auto name = given.text("name")) device.name = *name;
  if (auto kind = given.text("kind")) {
    auto found = device_kind(*kind);
    if (!found) given.expect("kind", *given.find("kind"), "\"gpu\", \"tpu\" or \"cpu\"");
    device.kind = *found;
  }
  if (auto memory = given.bytes("memory")) device.memory = *memory;
  if (auto bandwidth = given.rate("bandwidth")) device.bandwidth = *bandwidth;
  if (auto bandwidth = given.rate("host_bandwidth")) device.host_bandwidth = *bandwidth;
  if (auto share = given.number("matmul_share", 0.01, 1.5, "a share from 0.01 to 1.5"))
    device.matmul_share = *share;
  if (auto tf32 = given.number("tf32", 0, most_flops, "FLOP/s")) device.tf32 = *tf32;
  if (auto link = given.text("link")) {
    if (!find_link(*link)) given.refuse(*given.find("link"), unknown_link(*link));
    device.link = find_link(*link)->name;
  }
  if (const toml::node* flops = given.find("flops")) {
    if (!flops->is_table()) given.expect("flops", *flops, "a table such as { bfloat16 = 71e12 }");
    Section rates(*flops->as_table(), host.file(), given.name("flops."), dtype_names());
    device.flops.clear();
    for (const std::string& name : dtype_names())
      if (auto rate = rates.number(name, 1, most_flops, "FLOP/s, such as 71e12"))
        device.flops[*dtype_of(name)] = *rate;
  }
  // If float32 has no rate, takes that of another dtype.
  if (device.flops.empty() || device.memory <= 0 || device.bandwidth <= 0)
    given.refuse(*node, "'", host.name("device"), "' needs memory, bandwidth and flops, or like");
  if (device.flops.count(c10::kFloat) == 0)
    device.flops[c10::kFloat] = device.flops.begin()->second;
  return device;
}

LinkFacts read_link(const Section& section) {
  const toml::node* node = section.find("link");
  if (node->is_string()) {
    std::string name(**node->as_string());
    if (auto link = find_link(name)) return *link;
    section.refuse(*node, unknown_link(name));
  }
  if (!node->is_table()) section.expect("link", *node, "a name or a table");
  Section given(*node->as_table(), section.file(), section.name("link."),
                {"name", "like", "bandwidth", "share", "latency_us", "hop_us", "small_latency_us",
                 "small_hop_us"});
  // Default latencies: those of NCCL for a network, its longest.
  LinkFacts link{.name = "link", .latency_us = 8.4, .hop_us = 9.6};
  if (auto like = given.text("like")) {
    auto found = find_link(*like);
    if (!found) given.refuse(*given.find("like"), unknown_link(*like));
    link = *found;
  }
  if (auto name = given.text("name")) link.name = *name;
  if (auto bandwidth = given.rate("bandwidth")) link.bandwidth = *bandwidth;
  if (auto share = given.number("share", 0.01, 1.5, "a share from 0.01 to 1.5"))
    link.share = *share;
  const std::string words = "microseconds";
  if (auto us = given.number("latency_us", 0, most_us, words)) link.latency_us = *us;
  if (auto us = given.number("hop_us", 0, most_us, words)) link.hop_us = *us;
  if (auto us = given.number("small_latency_us", 0, most_us, words)) link.small_latency_us = *us;
  if (auto us = given.number("small_hop_us", 0, most_us, words)) link.small_hop_us = *us;
  if (link.bandwidth <= 0)
    given.refuse(*node, "'", section.name("link"), "' needs a bandwidth, or like");
  return link;
}

HostGroup read_host(const toml::node& node, const std::string& file) {
  require_usage(node.is_table(), file, ":", node.source().begin.line,
                ": 'hosts': expected tables such as { count = 2, devices = 8, device = \"H100\" }");
  Section host(*node.as_table(), file, "hosts.",
               {"count", "devices", "device", "link", "cores", "price_per_hour"});
  HostGroup group;
  if (auto count = host.whole("count")) group.count = *count;
  if (auto devices = host.whole("devices")) group.devices = *devices;
  if (auto cores = host.whole("cores")) group.cores = *cores;
  if (auto price = host.number("price_per_hour", 0, 1e9, "a price")) group.price_per_hour = *price;
  group.device = read_device(host);
  if (host.find("link") != nullptr)
    group.link = read_link(host);
  else if (auto link = find_link(group.device.link))
    group.link = *link;
  else if (group.devices > 1)
    host.refuse(node, "the key 'hosts.link' is missing: the link between the devices of a host");
  return group;
}

NetworkFacts read_network(const toml::node& node, const std::string& file) {
  require_usage(node.is_table(), file, ":", node.source().begin.line,
                ": 'network': expected a table such as { link = \"ib-400\" }");
  Section section(*node.as_table(), file, "network.", {"link", "per", "oversubscription"});
  if (section.find("link") == nullptr) section.refuse(node, "the key 'network.link' is missing");
  NetworkFacts network{.link = read_link(section)};
  if (auto per = section.text("per")) {
    if (*per != "device" && *per != "host")
      section.expect("per", *section.find("per"), "\"device\" or \"host\"");
    network.is_per_host = *per == "host";
  }
  if (auto times = section.number("oversubscription", 1, 1000, "a number from 1 to 1000"))
    network.oversubscription = *times;
  return network;
}

ReservedMemory read_reserve(const toml::node* node, const std::string& file,
                            DeviceFacts::Kind kind) {
  ReservedMemory reserve = default_reserve(kind);
  if (node == nullptr) return reserve;
  require_usage(node->is_table(), file, ":", node->source().begin.line,
                ": 'reserve': expected a table such as { context = 0.6 }");
  Section section(*node->as_table(), file, "reserve.", {"context", "group", "workspace"});
  if (auto bytes = section.bytes("context")) reserve.context = *bytes;
  if (auto bytes = section.bytes("group")) reserve.group = *bytes;
  if (auto bytes = section.bytes("workspace")) reserve.workspace = *bytes;
  return reserve;
}

Efficiency read_efficiency(const Section& section, const std::string& key) {
  const std::string words = "sizes that ascend and shares, such as [[256, 0.3], [4096, 0.8]]";
  const toml::node& node = *section.find(key);
  Efficiency efficiency;
  if (!node.is_array() || node.as_array()->empty()) section.expect(key, node, words);
  for (const toml::node& item : *node.as_array()) {
    const toml::array* pair = item.as_array();
    if (pair == nullptr || pair->size() != 2) section.expect(key, item, words);
    double size = section.number_of(key, *pair->get(0), 1, 1e9, words);
    double share = section.number_of(key, *pair->get(1), 1e-4, 10, words);
    if (!efficiency.points.empty() && size <= efficiency.points.back().first)
      section.expect(key, item, words);
    efficiency.points.emplace_back(size, share);
  }
  return efficiency;
}

Measurements read_measured(const toml::node& node, const std::string& file) {
  require_usage(node.is_table(), file, ":", node.source().begin.line,
                ": 'measured': expected a table");
  Section section(*node.as_table(), file, "measured.",
                  {"matmul", "attention", "biased_attention", "convolution", "bandwidth",
                   "launch_us", "collective"});
  Measurements measured;
  measured.bandwidth = section.number("bandwidth", 0.01, 10, "a share from 0.01 to 10");
  measured.launch_us = section.number("launch_us", 0, most_us, "microseconds");
  for (ProductKind kind : product_kinds) {
    const std::string name = name_of(kind);
    const toml::node* rates = section.find(name);
    if (rates == nullptr) continue;
    if (!rates->is_table()) section.expect(name, *rates, "a table with a list for each dtype");
    Section dtypes(*rates->as_table(), file, "measured." + name + ".", dtype_names());
    for (const auto& [key, ignored] : dtypes.table())
      measured.products[kind][*dtype_of(std::string(key.str()))] =
          read_efficiency(dtypes, std::string(key.str()));
  }
  if (const toml::node* collective = section.find("collective")) {
    if (!collective->is_table()) section.expect("collective", *collective, "a table for each link");
    for (const auto& [key, link] : *collective->as_table()) {
      std::string name(key.str());
      if (!link.is_table()) section.expect("collective." + name, link, "a table");
      Section costs(*link.as_table(), file, "measured.collective." + name + ".",
                    {"latency_us", "hop_us", "share"});
      measured.collective[name] = {
          costs.number("latency_us", 0, most_us, "microseconds").value_or(0),
          costs.number("hop_us", 0, most_us, "microseconds").value_or(0),
          costs.number("share", 1e-6, 10, "a share of the link's bandwidth").value_or(1)};
    }
  }
  return measured;
}

ClusterSpec read_cluster(const toml::table& table, const std::string& file) {
  const toml::node* format = table.get("format");
  if (format != nullptr) {
    require_usage(format->is_integer(), file, ":", format->source().begin.line,
                  ": 'format': expected a whole number");
    check_format(file + ": ", **format->as_integer(), cluster_format);
  }
  Section top(table, file, "", {"format", "hosts", "network", "reserve", "measured"});
  const toml::node* hosts = top.find("hosts");
  require_usage(hosts != nullptr, file,
                ": the key 'hosts' is missing, such as hosts = [{ count = 2, ",
                "devices = 8, device = \"H100-80G\" }]");
  if (!hosts->is_array() || hosts->as_array()->empty())
    top.expect("hosts", *hosts, "a list of tables");
  ClusterSpec cluster;
  for (const toml::node& host : *hosts->as_array()) cluster.hosts.push_back(read_host(host, file));
  check_size(cluster, file);
  if (const toml::node* network = top.find("network"))
    cluster.network = read_network(*network, file);
  if (cluster.n_hosts() > 1 && !cluster.network)
    top.refuse(*hosts, "there are ", cluster.n_hosts(),
               " hosts: the key 'network' is missing, such as network = { link = \"ib-400\" }");
  cluster.reserve = read_reserve(top.find("reserve"), file, cluster.device().kind);
  if (const toml::node* measured = top.find("measured"))
    cluster.measured = read_measured(*measured, file);
  return cluster;
}

}  // namespace

}  // namespace plan

ClusterSpec ClusterSpec::from_toml(std::string_view text, const std::string& name) {
  try {
    return plan::read_cluster(toml::parse(text), name);
  } catch (const toml::parse_error& error) {
    require_usage(false, name, ":", error.source().begin.line, ": not TOML: ", error.description());
    throw;
  }
}

ClusterSpec ClusterSpec::read(const std::string& path) {
  std::ifstream stream(path);
  std::ostringstream text;
  if (stream) text << stream.rdbuf();
  require_usage(stream && text, "cannot read the cluster file '", path, "'");
  return from_toml(text.view(), path);
}

}  // namespace redco
