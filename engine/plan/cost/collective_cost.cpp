// The time of one collective: NCCL's model of itself (src/graph/tuning.cc of NCCL 2), for groups
// that may have any number of ranks on each host.

#include "collective_cost.h"

#include <redco/error.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace redco::plan {

namespace {

constexpr double microsecond = 1e-6;

// Returns the number of steps of a ring with n members. With n hosts, these are the steps between
// hosts.
int64_t ring_steps(Group::Kind kind, int64_t n) {
  return kind == Group::all_reduce_kind ? 2 * (n - 1) : n - 1;
}

// A link, with measured figures if there are any.
struct Link {
  double bandwidth, latency_us, hop_us, small_latency_us, small_hop_us;
  bool has_small() const { return small_latency_us > 0; }
};

Link measured(const LinkFacts& link, const ClusterSpec& cluster) {
  auto found = cluster.measured.collective.find(link.name);
  if (found == cluster.measured.collective.end())
    return {link.bandwidth * link.share, link.latency_us, link.hop_us, link.small_latency_us,
            link.small_hop_us};
  const auto& [latency, hop, share] = found->second;
  return {link.bandwidth * share, latency, hop, 0, 0};
}

// The slowest link inside of a host.
Link link_in_host(const ClusterSpec& cluster) {
  const HostGroup* slowest = &cluster.hosts.front();
  for (const HostGroup& group : cluster.hosts)
    if (group.link.bandwidth < slowest->link.bandwidth) slowest = &group;
  return measured(slowest->link, cluster);
}

// Returns the bandwidth between the hosts of a group with r ranks on each host: that of r network
// cards.
double bandwidth_between(const NetworkFacts& network, const Link& link, int64_t ranks_of_host,
                         int64_t devices_per_host) {
  double cards = network.is_per_host ? double(ranks_of_host) / double(devices_per_host)
                                     : double(ranks_of_host);
  return link.bandwidth * cards / network.oversubscription;
}

// NCCL's trees: the latency of a hop in a host and between hosts, for the protocols Simple and LL,
// and the base latency of LL. A tree reaches 0.9 of a ring's bandwidth, with LL 1/3.8 of that.
constexpr double tree_hop_us[] = {28, 50}, small_tree_hop_us[] = {0.52, 5}, small_tree_us = 4.4;
constexpr double tree_share = 0.9, small_tree_share = 1 / 3.8;
// LL in a ring: its share of the bandwidth between hosts or with a reduction; its share otherwise;
// and how much longer a hop in a host takes if there are several hosts.
constexpr double small_share = 1.0 / 4, small_share_in_host = 1.0 / 3, small_slowdown = 1.8;

}  // namespace

GroupPlace place_of(const Collective& collective, const ClusterSpec& cluster) {
  GroupPlace place{.n_ranks = collective.n_ranks};
  int64_t n_devices = std::max<int64_t>(1, cluster.devices_per_host());
  int64_t host = 0, on_host = 0, fewest = std::numeric_limits<int64_t>::max();
  for (int64_t i = 0; i < collective.n_ranks; ++i) {
    int64_t next = i * collective.rank_step / n_devices;
    if (next != host) {
      fewest = std::min(fewest, on_host);
      host = next;
      on_host = 0;
      ++place.n_hosts;
    }
    ++on_host;
  }
  place.ranks_of_host = place.n_hosts == 1 ? on_host : fewest;
  return place;
}

double seconds_of(const Collective& collective, const ClusterSpec& cluster) {
  if (collective.n_ranks <= 1 || cluster.hosts.empty()) return 0;
  auto [n, n_hosts, ranks_of_host] = place_of(collective, cluster);
  const Link in_host = link_in_host(cluster);
  const auto bytes = double(collective.bytes_sent);
  bool is_reduce = collective.kind == Group::all_reduce_kind;
  int64_t steps = ring_steps(collective.kind, n);
  if (n_hosts == 1) {
    double seconds = microsecond * (in_host.latency_us + double(steps) * in_host.hop_us) +
                     bytes / in_host.bandwidth;
    if (!in_host.has_small()) return seconds;
    double share = is_reduce ? small_share : small_share_in_host;
    return std::min(
        seconds, microsecond * (in_host.small_latency_us + double(steps) * in_host.small_hop_us) +
                     bytes / (share * in_host.bandwidth));
  }
  require(cluster.network.has_value(), "a group of ", n, " devices has ", n_hosts,
          " hosts, but the cluster has no network");
  const Link network = measured(cluster.network->link, cluster);
  double bandwidth =
      bandwidth_between(*cluster.network, network, ranks_of_host, cluster.devices_per_host());
  int64_t between = ring_steps(collective.kind, n_hosts), inside = steps - between;
  if (collective.kind == Group::all_to_all_kind) {
    // Each row for a rank of another host crosses the network once, through its own device's card.
    double crossing = bytes * double(n - ranks_of_host) / double(n - 1);
    double seconds = std::max(crossing / (bandwidth / double(ranks_of_host)),
                              (bytes - crossing) / in_host.bandwidth);
    return microsecond * (network.latency_us + double(inside) * in_host.hop_us +
                          double(between) * network.hop_us) +
           seconds;
  }
  if (ranks_of_host > 1) bandwidth = std::min(bandwidth, in_host.bandwidth);
  double best = microsecond * (network.latency_us + double(inside) * in_host.hop_us +
                               double(between) * network.hop_us) +
                bytes / bandwidth;
  if (!network.has_small()) return best;
  best = std::min(best, microsecond * (network.small_latency_us +
                                       double(inside) * small_slowdown * in_host.small_hop_us +
                                       double(between) * network.small_hop_us) +
                            bytes / (small_share * bandwidth));
  if (!is_reduce) return best;
  // A tree sends 2 S bytes, a ring 2 S (n - 1) / n.
  double tree_bytes = bytes * double(n) / double(n - 1);
  double depth = std::floor(std::log2(double(n_hosts)));
  auto tree = [&](double base_us, const double* hop_us, double share) {
    return microsecond *
               (base_us + 2 * (double(ranks_of_host - 1) * hop_us[0] + depth * hop_us[1])) +
           tree_bytes / (share * bandwidth);
  };
  best = std::min(best, tree(0, tree_hop_us, tree_share));
  return std::min(best, tree(small_tree_us, small_tree_hop_us, tree_share * small_tree_share));
}

}  // namespace redco::plan
