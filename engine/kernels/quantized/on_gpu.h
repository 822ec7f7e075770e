// Blocks of quantized numbers on GPUs.

#pragma once

#include <redco/quantized.h>

#include <ATen/core/Tensor.h>

namespace redco::quantized {

/// Decodes contiguous blocks [..., bytes] to `y` [..., size] of float32, bfloat16 or float16.
/// Throws Error.
void decode_on_gpu(const at::Tensor& blocks, const BlockType& type, const at::Tensor& y);

/// x [rows, in] of float32, contiguous blocks [out, in / size, bytes] -> [rows, out]. Reads the
/// blocks once for four rows. Throws Error.
at::Tensor multiply_on_gpu(const at::Tensor& x, const at::Tensor& blocks, const BlockType& type);

}  // namespace redco::quantized
