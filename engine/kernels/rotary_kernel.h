#pragma once

#include <ATen/core/Tensor.h>

namespace redco::kernels {

/// Turns the pairs of x into y by one kernel of the GPU; the last dimensions are dense. `sign` is
/// that of sin. False, and nothing is done, if there is none for these tensors: other types, more
/// than four dimensions, parts of rows that do not fill units of 16 bytes, no NVRTC.
bool rotary_on_gpu(const at::Tensor& y, const at::Tensor& x, const at::Tensor& cos,
                   const at::Tensor& sin, bool are_neighbours, float sign);

}  // namespace redco::kernels
