#pragma once

#include "../trace/step_log.h"

#include <redco/plan.h>

#include <cstddef>
#include <vector>

namespace redco::plan {

/// The memory of a device in `n_moments` equal parts of a step. `times` are those of the log's
/// events (CostModel::simulate).
MemoryTimeline timeline_of(const StepLog& log, const std::vector<double>& times,
                           size_t n_moments = 120);

}  // namespace redco::plan
