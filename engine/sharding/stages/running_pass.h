// The pass through the stages that this thread runs.

#pragma once

#include <redco/detail/staged_pass.h>

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace redco::sharding {

/// Moves an argument of a call below autograd. Throws Error in the backward pass of a schedule,
/// where the other stage may not be.
at::Tensor moved_within_call(const at::Tensor& tensor, int64_t to);

/// Before a parameter at rest is gathered over the stages. Throws Error if they are at different
/// points of a step.
void check_stages_are_together(const char* what);

}  // namespace redco::sharding
