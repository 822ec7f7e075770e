#pragma once

#include "call_plan.h"

#include <ATen/core/stack.h>

namespace redco::sharding {

/// Runs a call whose weights are those of experts on several ranks, or that reads rows at experts,
/// at the ranks of the experts: products with weights chosen by numbers, and what a mixture does
/// with their results before it adds them up. Puts the results on the stack. Returns false, and
/// changes nothing, for other calls.
bool run_at_experts(Call& call, torch::jit::Stack* stack);

}  // namespace redco::sharding
