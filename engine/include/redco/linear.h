#pragma once

#include <redco/export.h>

#include <ATen/core/Tensor.h>

namespace redco {

/// x weight^T + bias, as at::linear: x [..., in], weight [out, in], bias [out] or undefined. Where
/// no gradient is recorded and x has few rows, as in generation, the time goes into reading the
/// weight: on the CPU a float32 weight of either order in memory is then read once, at the speed of
/// the memory.
REDCO_API at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

}  // namespace redco
