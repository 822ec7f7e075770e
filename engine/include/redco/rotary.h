#pragma once

#include <redco/export.h>

#include <ATen/core/Tensor.h>

namespace redco {

/// Rotary positions (arXiv 2104.09864): turns pairs of elements of the rows of x [..., D] by
/// angles, whose cos and sin are [..., n] and broadcast to the rows. Pair i has element i and
/// element n + i, or, if `are_neighbours`, elements 2 i and 2 i + 1. Elements from 2 n on stay.
/// Backward keeps `cos` and `sin` alone. Differentiable any number of times.
REDCO_API at::Tensor rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                            bool are_neighbours = false);

}  // namespace redco
