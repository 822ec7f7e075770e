#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace redco::sharding {

/// Runs the parts of a composite operator, as LibTorch does without a kernel of this library.
void call_composite(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace redco::sharding
