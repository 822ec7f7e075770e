#pragma once

#include "linear_cross_entropy.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace redco::kernels {

/// Whether the functions below can run on logits that are like `x`: float32, bfloat16 or float16 on
/// a GPU, or in a plan for GPUs.
bool has_cross_entropy_kernels(const at::Tensor& x);

/// Of each row, in float32, [rows, 1].
struct RowSums {
  at::Tensor normalizer;  ///< log(sum(exp))
  at::Tensor sum;
};

/// Of `logits` [rows, columns], of which the first `n_classes` columns count. Here and below, the
/// columns must fill whole units of 16 bytes.
RowSums row_sums(const at::Tensor& logits, int64_t n_classes);

/// The losses [rows, 1] in float32. The logits become the gradient of their losses, if it is
/// needed; that of further columns is 0. The normalizer is that of all classes.
at::Tensor losses_of_logits_(const at::Tensor& logits, int64_t n_classes, const RowSums& sums,
                             const Target& target, bool needs_gradient);

}  // namespace redco::kernels
