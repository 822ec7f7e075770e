// Saves a run to a checkpoint and restores it.

#include "run_checkpoint.h"

#include <ATen/core/grad_mode.h>

#include <utility>

namespace redco::train {

Checkpoint checkpoint_of(const TrainStep& step, const RunState& run, bool with_opt_state,
                         bool is_epoch_done) {
  const TrainState& state = step.state();
  Tree::Dict info = to_info(run, is_epoch_done);
  info["step"] = state.step;
  info["trainer_seed"] = int64_t(step.seed());
  if (state.loss_scale)
    info["loss_scale"] = Tree::Dict{{"scale", state.loss_scale->scale},
                                    {"good_steps", state.loss_scale->good_steps}};
  return {state.params, with_opt_state ? state.opt_state : Tree(), std::move(info)};
}

void restore(const Checkpoint& checkpoint, TrainStep& step, RunState& run) {
  at::NoGradGuard no_grad;
  TrainState& state = step.state();
  step.params().restore(checkpoint.params);
  copy_values("optimizer state", checkpoint.opt_state, state.opt_state);
  state.step = step_of(checkpoint.info, 0);
  state.loss_scale = loss_scale_of(checkpoint.info, state.loss_scale);
  run = run_state_of(checkpoint.info);
}

}  // namespace redco::train
