#pragma once

#include "run_state.h"
#include "step/train_step.h"

#include <redco/checkpoint.h>

namespace redco::train {

struct CheckpointContents {
  bool opt_state = true;
  bool frozen = false;         ///< the values of frozen parameters, not only their names
  bool is_epoch_done = false;  ///< it resumes with the next epoch
};

/// The checkpoint of a run. Every process must call it.
Checkpoint checkpoint_of(TrainStep& step, const RunState& run, const CheckpointContents& contents);

/// Returns to a checkpoint of the same run: copies its values into the existing parameters and
/// states.
void restore(const Checkpoint& checkpoint, TrainStep& step, RunState& run);

/// Sets the plain values of a tree to those of another, and keeps its tensors.
void copy_plain_values(const Tree& from, Tree& to);

}  // namespace redco::train
