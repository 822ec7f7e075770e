#pragma once

#include <redco/cluster.h>
#include <redco/group.h>

#include <vector>

namespace redco::plan {

/// A collective that was timed.
struct CollectiveSample {
  Group::Kind kind;
  int64_t n_ranks;
  int64_t bytes_sent;  ///< as in Group::counters
  double seconds;
};

/// Fits seconds = latency + steps x hop + bytes / (share x bandwidth), the form of seconds_of for a
/// measured link, by least squares of the relative errors. No number is negative. Throws Error
/// without samples of two sizes.
REDCO_API Measurements::Link fit_link(const std::vector<CollectiveSample>& samples,
                                      double bandwidth);

}  // namespace redco::plan
