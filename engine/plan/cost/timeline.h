#pragma once

#include "cost_model.h"

#include <redco/plan.h>

#include <cstddef>

namespace redco::plan {

/// The memory of a device in `n_moments` equal parts of a step.
MemoryTimeline timeline_of(const CostModel& cost, const StepLog& log, size_t n_moments = 120);

}  // namespace redco::plan
