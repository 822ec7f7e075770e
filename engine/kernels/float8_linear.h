#pragma once

#include <ATen/core/Tensor.h>

namespace redco::kernels {

/// Whether Float8Products are on and are for x [..., in] weight^T.
bool multiplies_in_float8(const at::Tensor& x, const at::Tensor& weight);

/// x weight^T by products of numbers of 8 bits.
at::Tensor float8_linear(const at::Tensor& x, const at::Tensor& weight);

}  // namespace redco::kernels
