// Tensors that are made from one parameter alone: maps their dimensions to the parameter's.

#pragma once

#include <redco/sharding.h>

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

namespace redco::sharding {

/// The parameter that a tensor was made from.
struct Origin {
  int parameter;
  /// For each dimension of the tensor, those of the parameter that are merged in it, outer first.
  /// None if it is a part of one.
  std::vector<std::vector<int>> dims;
};

/// That of the parameter itself.
Origin origin_of(const at::Tensor& given, int parameter);

/// That of a view of a tensor with this origin.
Origin of_view(const Origin& origin, const at::Tensor& tensor, const at::Tensor& view);

/// The placement of the parameter by which the tensor has this one. Nullopt if there is none.
std::optional<Placement> on_parameter(const Origin& origin, const Placement& on_tensor,
                                      const at::Tensor& given, int64_t n_ranks);

/// The placement that the tensor has by this one of the parameter. Nullopt if none.
std::optional<Placement> on_tensor(const Origin& origin, const Placement& on_parameter,
                                   const at::Tensor& given, int64_t n_ranks);

}  // namespace redco::sharding
