#pragma once

#include <redco/export.h>

#include <ATen/core/Tensor.h>

namespace redco {

/// Computes x weight^T + bias, as at::linear does: x [..., in], weight [out, in], bias [out] or
/// undefined. If no gradient is recorded and x has few rows, as in generation, reading the weight
/// takes most of the time; on the CPU a weight in float32 or bfloat16, in row-major or column-major
/// memory order, is then read once, at memory bandwidth.
REDCO_API at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

}  // namespace redco
