// Moves tensors between the stages of a pipeline.

#pragma once

#include "../tensor/sharded_tensor.h"

#include <redco/group.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace redco::sharding {

/// Messages to other stages that may be on their way.
using Sends = std::vector<std::unique_ptr<Pending>>;

/// The dimension of the mesh that stages are along.
constexpr Mesh::Dim stages = Mesh::dim_of(Mesh::pipeline);

/// Returns the stand-in for a part that is on another stage: a shape without values. A plan counts
/// no memory of it.
at::Tensor absent_part(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype);

/// The device of what a process has itself. In a plan that has no values, either.
c10::Device device_of_values(const Mesh& mesh);

/// The stage that a tensor lies on; none if all processes have it, as a plain one.
std::optional<int64_t> stage_of(const at::Tensor& tensor);

/// The stage that a parameter at rest is on; none for other tensors.
std::optional<int64_t> resting_stage_of(const at::Tensor& tensor);

/// The tensor on the mesh of another stage, of which one process for each that holds a part of it
/// receives that part: from stage to stage, for each that lies between. Not differentiable.
at::Tensor moved_to_stage(const at::Tensor& tensor, int64_t to, Sends& sends);

/// Returns a tensor that all processes have as one of a stage. Shares memory. Not differentiable.
at::Tensor seen_by_stage(const at::Tensor& tensor, const std::shared_ptr<const Mesh>& stage);

/// Makes `alias`, which has the local tensor of `tensor`, or is on an absent stage, another name of
/// it.
void be_read_as(const at::Tensor& alias, const at::Tensor& tensor);

/// The parts of a tensor of a stage, which its processes hold, on the processes of all stages.
at::Tensor on_all_stages(const at::Tensor& local, const Mesh& stage);

}  // namespace redco::sharding
