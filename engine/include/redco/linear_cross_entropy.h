#pragma once

#include <redco/export.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace redco {

/// The sum over all labels of the cross-entropy of `x` weight^T + bias, without ever holding all
/// logits: blocks of rows are multiplied, used for the loss and for the gradients, and dropped.
/// Gradients of gradients, and calls inside functorch's transformations, hold all logits.
///
/// x [..., in], weight [classes, in] and bias [classes] of x's floating-point dtype, labels
/// [...] int64. A label of
/// `ignore_index` counts nothing. With `label_smoothing` s the target is 1 - s on the label plus
/// s / classes on every class. The result is 0-dimensional, float32 for inputs of 16 bits. Throws
/// Error for shapes, dtypes and labels that do not fit.
REDCO_API at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight,
                                          const at::Tensor& labels, int64_t ignore_index = -100,
                                          double label_smoothing = 0.0,
                                          const std::optional<at::Tensor>& bias = {});

}  // namespace redco
