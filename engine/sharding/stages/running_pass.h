// The pass through the stages that this thread runs.

#pragma once

#include "../call/call_plan.h"

#include <redco/mesh.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace redco::sharding {

/// A parameter as a tensor of the stage that has it, while a pass runs; any other tensor itself.
/// Throws Error inside of a transform such as vmap.
at::Tensor on_own_stage(const at::Tensor& tensor);

/// Moves an argument of a call below autograd. Throws Error in the backward pass of a schedule,
/// where the other stage may not be.
at::Tensor moved_within_call(const at::Tensor& tensor, int64_t to);

/// Whether this is how a stage sees a tensor that all have, or a view of it.
bool is_of_all_stages(const ShardedTensorImpl& impl);

/// Before a call on tensors that all stages have. Throws Error if it would gather a parameter over
/// stages that are at different points of a step.
void check_stages_are_together(const Call& call);

/// The end of the error for a parameter that no pass has put on its stage.
std::string in_transform(const Mesh& mesh);

}  // namespace redco::sharding
