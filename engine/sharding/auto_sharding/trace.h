// Runs operators for their shapes alone, on an imagined mesh.

#pragma once

#include "../plan.h"

#include <redco/sharding.h>

#include <ATen/core/stack.h>

#include <functional>
#include <memory>

namespace redco::sharding {

/// Makes a mesh of 1 x `n_model_shards` for traces, with this process as rank 0. Its collectives
/// move nothing and return tensors of the right shapes.
std::shared_ptr<const Mesh> make_imagined_mesh(int64_t n_model_shards, c10::Device device);

/// Calls `function`, which works on the stack as an operator does, on meta tensors; the results are
/// meta tensors too.
void call_without_values(torch::jit::Stack& stack,
                         const std::function<void(torch::jit::Stack&)>& function);

}  // namespace redco::sharding
