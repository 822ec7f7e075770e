#pragma once

#include <redco/export.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace redco {

/// The sum over all labels of the cross-entropy of `x` weight^T + bias, computed without storing
/// all logits: it computes the logits of a block of rows, adds to the loss and the gradients, and
/// drops them. Second-order gradients, and calls inside functorch's transformations, store all
/// logits.
///
/// x is [..., in], weight [classes, in] and bias [classes], of x's floating-point dtype; labels is
/// [...] int64. Labels equal to `ignore_index` do not count. With `label_smoothing` s the target is
/// 1 - s on the label plus s / classes on every class. The result is 0-dimensional, float32 for
/// 16-bit inputs. Throws Error for shapes, dtypes and labels that do not fit.
REDCO_API at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight,
                                          const at::Tensor& labels, int64_t ignore_index = -100,
                                          double label_smoothing = 0.0,
                                          const std::optional<at::Tensor>& bias = {});

/// The log-probability of each label by x weight^T + bias, [...], 0 for labels equal to
/// `ignore_index`: minus the terms of `linear_cross_entropy`, with the same arguments, dtypes and
/// errors. Backward computes the logits again, block by block.
REDCO_API at::Tensor linear_logprobs(const at::Tensor& x, const at::Tensor& weight,
                                     const at::Tensor& labels, int64_t ignore_index = -100,
                                     const std::optional<at::Tensor>& bias = {});

}  // namespace redco
