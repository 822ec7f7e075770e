#pragma once

#include "step_trace.h"

#include <cstdint>
#include <vector>

namespace redco::plan {

/// A step of one stage of a pipeline.
struct TracedStage {
  int64_t stage = 0;
  StepTrace trace;
};

/// Traces the stages that decide the memory and the time of a step: the first, which keeps the
/// activations of most micro-batches, the one with the most work, and the last, which has the loss.
/// Without a pipeline it is one. `layout.mesh.stage` has no effect.
/// No stage keeps more micro-batches than there are stages: a step of more is traced with one more
/// than that. With chunks it keeps less than two groups.
std::vector<TracedStage> trace_stages(TracedProgram program, TracedLayout layout);

/// The rules that decide the same.
std::vector<ShardingRule> rules_of(const std::vector<ShardingDecision>& decisions);

/// The micro-batches of such a step.
int64_t n_traced_of(const TracedLayout& layout);

}  // namespace redco::plan
