#pragma once

#include <redco/sharding.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <memory>

namespace redco {

/// A mesh of 1 x `n_model_shards` of which this process plays rank 0: its collectives move nothing,
/// and return tensors of the right shapes.
std::shared_ptr<const Mesh> make_imagined_mesh(int64_t n_model_shards, c10::Device device);

/// Calls the operator on the stack with tensors that have shapes and no values.
void call_without_values(const c10::OperatorHandle& op, torch::jit::Stack& stack);

}  // namespace redco
