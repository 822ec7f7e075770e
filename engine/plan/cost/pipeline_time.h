// The time of a step whose stages take turns.

#pragma once

#include "../trace/stage_traces.h"
#include "cost_model.h"

#include <redco/export.h>

#include <cstdint>
#include <vector>

namespace redco::plan {

/// The seconds of a stage of a pipeline.
struct StageSeconds {
  double forward = 0, backward = 0;     ///< of a turn: a micro-batch through one chunk
  double rest = 0;                      ///< of a step: reducing its gradients, the update
  double to_next = 0, to_previous = 0;  ///< of what it sends after forward, and after backward

  /// Of a step, without waiting for other stages.
  double busy(int64_t n_turns) const { return double(n_turns) * (forward + backward) + rest; }
};

/// Reads them from the log of a stage. The last backward pass reduces the gradients of the step;
/// the others show how long one takes.
REDCO_API StageSeconds stage_seconds(const CostModel& cost, const StepLog& log);

/// The seconds of a step in the order of train::turns_of, where a forward pass begins when the
/// stage before has sent its result, and a backward pass when the stage behind has sent its
/// gradient.
REDCO_API double pipeline_seconds(const std::vector<StageSeconds>& stages, int64_t n_chunks,
                                  int64_t n_batches);

struct StepSeconds {
  /// Of the stage that is busy the longest. Its waiting for others is exposed along the stages.
  StepTime slowest;
  double model_flops = 0;  ///< of a device, without what is computed again: the mean of the stages
};

/// The seconds of a step of `n_batches` micro-batches, of which `n_traced` were traced, with
/// `n_chunks` on each stage. A stage that was not traced takes the time of the one with the most
/// work by its share of that.
StepSeconds step_seconds(const CostModel& cost, const std::vector<TracedStage>& traced,
                         int64_t n_traced, int64_t n_chunks, int64_t n_batches);

}  // namespace redco::plan
