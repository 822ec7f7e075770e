#pragma once

#include "fill.h"

#include <ATen/core/Tensor.h>

#include <optional>

namespace redco::random {

/// Softmax and its dropout by one kernel of the GPU, into dense tensors like `scores`, which is
/// dense. `mask` has the sizes of `scores`. False, and nothing is done, if there is none for these
/// tensors: other types, rows that do not fill units of 16 bytes, no NVRTC.
bool softmax_dropout_on_gpu(const at::Tensor& probs, const at::Tensor& dropped,
                            const at::Tensor& scores, const std::optional<at::Tensor>& mask,
                            double scale, const Stream& stream, double p);
/// The same for the gradient of the scores. All tensors are dense.
bool softmax_dropout_backward_on_gpu(const at::Tensor& d_scores, const at::Tensor& grad,
                                     const at::Tensor& probs, const at::Tensor& dropped,
                                     double scale, double p);

}  // namespace redco::random
