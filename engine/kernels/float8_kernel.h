#pragma once

#include <ATen/core/Tensor.h>

namespace redco::kernels {

/// y = x factor, rounded to 8 bits, by one kernel of the GPU: x [rows, columns] in bfloat16, y of
/// its sizes in float8_e4m3fn or float8_e5m2, with its rows or its columns contiguous; factor a
/// float. False, and nothing is done, if there is no kernel for these tensors.
bool to_float8_on_gpu(const at::Tensor& y, const at::Tensor& x, const at::Tensor& factor);

}  // namespace redco::kernels
