#pragma once

#include "run_state.h"
#include "train_step.h"

#include <redco/checkpoint.h>

namespace redco::train {

/// The checkpoint of a run. `is_epoch_done`: it resumes with the next epoch.
Checkpoint checkpoint_of(const TrainStep& step, const RunState& run, bool with_opt_state,
                         bool is_epoch_done);

/// Returns to a checkpoint of the same run: copies its values into the existing parameters and
/// states.
void restore(const Checkpoint& checkpoint, TrainStep& step, RunState& run);

/// Sets the plain values of a tree to those of another, and keeps its tensors.
void copy_plain_values(const Tree& from, Tree& to);

}  // namespace redco::train
