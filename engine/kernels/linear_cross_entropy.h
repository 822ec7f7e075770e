#pragma once

#include <redco/export.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <tuple>

namespace redco::kernels {

/// The classes whose weights a rank holds: [begin, end) of all.
struct Classes {
  int64_t begin, end;
  int64_t n_all;
  int64_t n_most;  ///< the maximum over ranks, from which all derive the same block size
  /// The maximum number of rows over ranks, from which all derive the same number of blocks:
  /// `over_all` communicates.
  int64_t n_most_rows;
  /// Maps log(sum(exp(logits))) over these classes, [rows, 1], to that over all; null if these are
  /// all.
  std::function<at::Tensor(const at::Tensor& normalizer)> over_all;
};

/// The requested gradients.
struct Needed {
  bool x, weight, bias;
  bool any() const { return x || weight || bias; }
};

/// The targets of the rows.
struct Target {
  at::Tensor labels;   ///< [rows, 1], index among the local classes; 0 if missing
  at::Tensor ignored;  ///< [rows, 1]: the row counts nothing
  at::Tensor missing;  ///< [rows, 1]: the label is not a local class
  bool some_ignored, some_missing;
  double smoothing;
  int64_t n_classes;  ///< in total

  Target rows(int64_t begin, int64_t length) const {
    Target part = *this;
    for (at::Tensor* column : {&part.labels, &part.ignored, &part.missing})
      *column = column->narrow(0, begin, length);
    return part;
  }
};

/// The number of rows whose logits for `n_classes` classes are held at a time. The last block has
/// fewer.
REDCO_API int64_t rows_per_block(c10::DeviceType device, int64_t n_classes);

/// How the losses of rows become one result.
struct RowLosses {
  bool are_kept;  ///< the result is the loss of each row, [rows], and not the sum
  std::optional<at::Tensor> weights;  ///< [rows]: of each row's loss in the gradients; 1 without
};

/// A rank's contribution to the loss and to the gradients of its sum: (loss, of x, of weight, of
/// bias). The first two are terms of sums over the ranks that hold the other classes. Gradients
/// that are not needed are undefined. Runs below autograd.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> linear_cross_entropy_part(
    const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
    const at::Tensor& labels, int64_t ignore_index, double label_smoothing, Needed needed,
    const RowLosses& rows, const Classes& classes);

}  // namespace redco::kernels
