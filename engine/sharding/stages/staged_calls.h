// Operators on the tensors of a stage.

#pragma once

#include "../call/call_plan.h"

#include <redco/mesh.h>

#include <ATen/core/stack.h>

#include <cstdint>
#include <string>

namespace redco::sharding {

/// "stage 1 of n_pipeline_stages = 2", for errors.
std::string name_of_stage(int64_t stage, const Mesh& run);

/// Whether the shape of its result depends on values.
bool has_shape_of_values(const Call& call);

/// Puts all tensors of a call on the mesh of its stage, the last of those that its arguments are
/// on. Throws Error for what a call of a stage cannot do: write to a tensor that all processes
/// have, or give a result whose shape depends on values.
void put_on_stage(Call& call);

/// Sends a result that is no tensor, such as a number, to the processes of all stages.
void share_values(const Call& call, torch::jit::Stack& results);

/// Throws Error if a value of a stage cannot be sent to all, because they are at other points of
/// the training step.
void check_values_are_readable(const Mesh& stage);

}  // namespace redco::sharding
