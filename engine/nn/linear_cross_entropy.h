#pragma once

#include <redco/export.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <tuple>

namespace redco::nn {

/// The classes whose weights a rank holds: [begin, end) of all.
struct Classes {
  int64_t begin, end;
  int64_t n_all;
  int64_t n_most;  ///< the maximum over ranks, from which all derive the same block size
  /// The maximum number of rows over ranks, from which all derive the same number of blocks:
  /// `log_softmax` communicates.
  int64_t n_most_rows;
  /// Maps logits [rows, local classes] to log-probabilities over all classes.
  std::function<at::Tensor(const at::Tensor& logits)> log_softmax;
};

/// The requested gradients.
struct Needed {
  bool x, weight, bias;
};

/// The number of rows whose logits for `n_classes` classes are held at a time. The last block has
/// fewer.
REDCO_API int64_t rows_per_block(c10::DeviceType device, int64_t n_classes);

/// A rank's contribution to the summed loss and to its gradients: (loss, of x, of weight, of bias).
/// The first two are terms of sums over the ranks that hold the other classes. Gradients that are
/// not needed are undefined. Runs below autograd.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> linear_cross_entropy_part(
    const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
    const at::Tensor& labels, int64_t ignore_index, double label_smoothing, Needed needed,
    const Classes& classes);

}  // namespace redco::nn
