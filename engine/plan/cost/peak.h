#pragma once

#include "../trace/tracer.h"

#include <redco/plan.h>

#include <array>
#include <vector>

namespace redco::plan {

/// The memory at the moment when a step needs most.
struct Peak {
  int64_t bytes = 0;
  std::array<int64_t, n_memory_kinds> kinds = {};  ///< their sum is `bytes`
  std::vector<PlannedTensor> largest = {};         ///< at most ten, the largest first
};
REDCO_API Peak peak_of(const Tracer::Step& step);

}  // namespace redco::plan
