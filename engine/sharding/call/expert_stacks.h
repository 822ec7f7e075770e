#pragma once

#include "call_plan.h"

#include <ATen/core/stack.h>

namespace redco::sharding {

/// Unbinds a stack of experts' weights that expert shards split between experts, or stacks weights
/// that are each on the rank of its number. Nothing moves. Puts the results on the stack; returns
/// false, and changes nothing, for other calls.
bool run_on_expert_stack(const Call& call, torch::jit::Stack* stack);

}  // namespace redco::sharding
