// Saves a run to a checkpoint and restores it.

#include "run_checkpoint.h"

#include <ATen/core/grad_mode.h>

#include <utility>

namespace redco::train {

Checkpoint checkpoint_of(TrainStep& step, const RunState& run, const CheckpointContents& contents) {
  const TrainState& state = step.state();
  Tree::Dict info = to_info(run, contents.is_epoch_done);
  info["step"] = state.step;
  info["trainer_seed"] = int64_t(step.seed());
  if (state.loss_scale)
    info["loss_scale"] = Tree::Dict{{"scale", state.loss_scale->scale},
                                    {"good_steps", state.loss_scale->good_steps}};
  return {.params = state.params,
          .opt_state = contents.opt_state ? state.opt_state : Tree(),
          .info = std::move(info),
          .custom_state = step.custom_state(),
          .frozen = contents.frozen ? FrozenTensors() : step.params().frozen()};
}

void copy_plain_values(const Tree& from, Tree& to) {
  if (to.is<Tree::Dict>() && from.is<Tree::Dict>()) {
    for (auto& [key, value] : to.as<Tree::Dict>()) copy_plain_values(from.at(key), value);
  } else if (to.is<Tree::List>() && from.is<Tree::List>()) {
    for (size_t i = 0; i < to.as<Tree::List>().size(); ++i)
      copy_plain_values(from.as<Tree::List>().at(i), to.as<Tree::List>()[i]);
  } else if (!to.is_tensor() && !to.is<Tree::Dict>() && !to.is<Tree::List>()) {
    to = from;
  }
}

void restore(const Checkpoint& checkpoint, TrainStep& step, RunState& run) {
  at::NoGradGuard no_grad;
  TrainState& state = step.state();
  step.params().restore(checkpoint.params);
  copy_values("optimizer state", checkpoint.opt_state, state.opt_state);
  copy_plain_values(checkpoint.opt_state, state.opt_state);
  step.set_custom_state(checkpoint.custom_state);
  state.step = step_of(checkpoint.info, 0);
  state.loss_scale = loss_scale_of(checkpoint.info, state.loss_scale);
  run = run_state_of(checkpoint.info);
}

}  // namespace redco::train
