#pragma once

#include <redco/export.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

namespace redco {

/// Returns `x` [b, ...] of all micro-batches of a Trainer's step, concatenated in their order. So a
/// loss can compare each example with those of all micro-batches. Outside of a step with several
/// micro-batches it returns x.
///
/// The loss is then one of the whole batch, and each micro-batch computes it. The values of the
/// other micro-batches come from a forward pass before; gradients pass to x alone, as often as
/// there are micro-batches, since the step takes the mean of their gradients (arXiv 2101.06983).
REDCO_API at::Tensor gather_micro_batches(const at::Tensor& x);

/// The tensors that the micro-batches of a step gather. While it exists, it is the one that
/// `gather_micro_batches` of this thread uses.
class REDCO_API MicroBatches {
 public:
  explicit MicroBatches(size_t count);
  ~MicroBatches();
  MicroBatches(const MicroBatches&) = delete;
  MicroBatches& operator=(const MicroBatches&) = delete;

  /// The loss of micro-batch i is computed next. With `collects`, only what it gathers is kept.
  void begin(size_t i, bool collects);
  /// Whether the loss gathers.
  bool is_used() const { return n_calls_ > 0; }
  /// Whether the tensors of all micro-batches are known.
  bool is_collected() const { return is_collected_; }

 private:
  friend at::Tensor gather_micro_batches(const at::Tensor& x);
  at::Tensor gather(const at::Tensor& x);

  size_t count_, at_ = 0, n_calls_ = 0;  // calls of the loss of this micro-batch
  bool collects_ = false, is_collected_ = false;
  std::vector<std::vector<at::Tensor>> calls_;  // the tensors of each call, by micro-batch
  MicroBatches* outer_;
};

}  // namespace redco
