#pragma once

#include <redco/export.h>

#include <ATen/record_function.h>

#include <memory>

namespace redco {

/// Counts the floating-point operations that this thread asks for while it lives, of what makes
/// nearly all of a model's work: matrix products, convolutions and attention, forward and backward,
/// a multiplication and an addition each for one. The formulas are those of PyTorch's
/// torch.utils.flop_counter, but for what a backward computes a second time (attention's scores,
/// checkpointed functions): that is no work of the model (arXiv 2204.02311, appendix B). Of sharded
/// tensors only this process's part counts.
class REDCO_API FlopCounter {
 public:
  /// Adds to `count`, unless its scope is left by an exception.
  explicit FlopCounter(double& count);
  ~FlopCounter();
  FlopCounter(const FlopCounter&) = delete;
  FlopCounter& operator=(const FlopCounter&) = delete;

 private:
  static std::unique_ptr<at::ObserverContext> on_call(const at::RecordFunction& call);

  double& total_;
  double count_ = 0;
  int n_exceptions_;
  FlopCounter* outer_;
  at::CallbackHandle handle_ = 0;
};

}  // namespace redco
