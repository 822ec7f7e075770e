// What a forward pass did, to compare it with another pass of the same function.

#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>

namespace redco::sharding {

/// Returns the digest after a call on tensors of stages: of its operator, numbers and shapes, and
/// of how often the tensors that all stages have were written before. A tensor that outlives a
/// pass, and is written in each, has another number each time.
uint64_t with_call(uint64_t digest, const c10::OperatorHandle& op, const torch::jit::Stack& stack);

/// The same after a draw: of the generator's state.
uint64_t with_draw(uint64_t digest, const at::Generator& generator);

}  // namespace redco::sharding
