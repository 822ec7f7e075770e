#pragma once

#include <ATen/core/Tensor.h>

namespace redco::kernels {

/// silu(gate) * up by one kernel of the GPU, into y, which is dense. False, and nothing is done, if
/// there is none for these tensors: other types, rows that do not fill units of 16 bytes, no NVRTC.
bool silu_mul_on_gpu(const at::Tensor& y, const at::Tensor& gate, const at::Tensor& up);
/// The same for the gradients of gate and up, which are dense.
bool silu_mul_backward_on_gpu(const at::Tensor& d_gate, const at::Tensor& d_up,
                              const at::Tensor& grad, const at::Tensor& gate, const at::Tensor& up);

}  // namespace redco::kernels
