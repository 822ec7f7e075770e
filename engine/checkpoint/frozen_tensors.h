// The parameters that a checkpoint names instead of containing them.
#pragma once

#include <redco/checkpoint.h>
#include <redco/mesh.h>
#include <redco/tree.h>

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>

namespace redco::checkpoint {

/// The field of info.json.
inline const std::string frozen_field = "frozen";

Tree tree_of(const FrozenTensors& frozen);
/// Throws Error, beginning with `where`, for a tree of another form.
FrozenTensors frozen_of(const std::string& where, const Tree& tree);

/// Returns the values of the frozen tensors, by name: those of the tree `given`, else those of the
/// files that they came from. Every process must call it. Throws Error, which names the first
/// tensor, if one can be had from neither, or has other values than it had in the run.
std::map<std::string, at::Tensor> frozen_values(const std::string& folder,
                                                const FrozenTensors& frozen, const Tree& given,
                                                const std::shared_ptr<const Mesh>& mesh);

}  // namespace redco::checkpoint
