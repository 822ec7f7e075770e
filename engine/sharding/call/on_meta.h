#pragma once

#include <ATen/core/stack.h>

#include <functional>

namespace redco::sharding {

/// Calls `function`, which works on the stack as an operator does, on meta tensors; the results are
/// meta tensors too.
void call_without_values(torch::jit::Stack& stack,
                         const std::function<void(torch::jit::Stack&)>& function);

}  // namespace redco::sharding
