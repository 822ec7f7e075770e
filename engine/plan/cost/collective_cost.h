#pragma once

#include "../trace/step_log.h"

#include <redco/cluster.h>

namespace redco::plan {

/// How a group of ranks is spread over hosts.
struct GroupPlace {
  int64_t n_ranks = 1;
  int64_t n_hosts = 1;
  int64_t ranks_of_host = 1;  ///< on the host that has the fewest, apart from a last, partial one
  bool operator==(const GroupPlace&) const = default;
};

/// The place of a collective's group that begins with rank 0. Ranks fill one host after another.
REDCO_API GroupPlace place_of(const Collective& collective, const ClusterSpec& cluster);

/// The seconds that a collective takes alone. Of rings and, for an all-reduce between hosts, trees,
/// each with NCCL's protocols for large and small messages, the fastest counts, as in NCCL; a link
/// that was measured has one protocol. Between hosts the devices of a group use their network cards
/// together, and share them with the groups beside them if there is one card for a host.
REDCO_API double seconds_of(const Collective& collective, const ClusterSpec& cluster);

}  // namespace redco::plan
