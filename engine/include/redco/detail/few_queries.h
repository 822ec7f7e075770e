#pragma once

#include <redco/export.h>

#include <ATen/core/Tensor.h>

#include <optional>

namespace redco {

/// Returns softmax(q k^T scale + mask) v of few queries in bfloat16, as in generation, by kernels
/// of the CPU that read k and v once: q [batch, heads, length, size], k and v [batch, heads, n,
/// size]. The default scale is 1 / sqrt(size). Returns nothing where LibTorch's attention has to do
/// it: for more than 16 queries of a head, other devices, dtypes and memory orders, sharded
/// tensors, and if a gradient is recorded.
REDCO_API std::optional<at::Tensor> attention_of_few_queries(const at::Tensor& q,
                                                             const at::Tensor& k,
                                                             const at::Tensor& v,
                                                             const std::optional<at::Tensor>& mask,
                                                             std::optional<double> scale);

}  // namespace redco
