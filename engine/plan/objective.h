#pragma once

#include <redco/plan.h>

#include <vector>

namespace redco::plan {

/// Sorts layouts, the best first: those that fit by the objective, then the others by the memory
/// that they need, and last those that were not planned.
void sort_by(PlanObjective objective, std::vector<PlannedLayout>& layouts);

/// Marks the layout that needs the least memory, and the one that does without recomputation.
void mark_least(std::vector<PlannedLayout>& layouts);

}  // namespace redco::plan
