// Products of local tensors with blocks [out, n, bytes] of quantized numbers.

#pragma once

#include <redco/quantized.h>

#include <ATen/core/Tensor.h>
#include <c10/util/string_view.h>

#include <string>

namespace redco::quantized {

/// Throws Error for an unknown type, and for a tensor that is not [..., n, bytes] of it.
const BlockType& checked_type(const char* function, const at::Tensor& blocks,
                              const std::string& name);

/// Whether the kernels of few rows may be used for x: no gradient is recorded.
bool may_be_few_rows(const at::Tensor& x);

/// x [rows, n, size] -> [rows, out]
at::Tensor multiplied(const at::Tensor& x, const at::Tensor& blocks, c10::string_view type,
                      bool is_few_rows);
/// grad [rows, out] -> [rows, n, size]
at::Tensor multiplied_transposed(const at::Tensor& grad, const at::Tensor& blocks,
                                 c10::string_view type);

}  // namespace redco::quantized
