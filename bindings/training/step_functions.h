#pragma once

#include "state/context.h"

#include <redco/trainer.h>

#include <lua.hpp>

namespace redco::lua {

/// The fields that a script adds to the state of a Trainer; either may be empty.
struct OfScript {
  Ref apply_fn, custom_state;
};

/// Pushes the `state` argument of loss_fn and train_step_fn.
void push_state(lua_State* L, const TrainState& state, const OfScript& own);

/// Returns a loss function that calls the script's.
LossFn make_loss_fn(const Ref& function, const OfScript& own);

/// Returns a step that calls the script's; none if `function` is empty. `loss_fn` is the one that
/// it gets in `defaults`.
TrainStepFn make_train_step_fn(const Ref& function, const Ref& loss_fn, const OfScript& own);

}  // namespace redco::lua
