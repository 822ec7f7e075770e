#pragma once

#include <redco/export.h>

#include <ATen/record_function.h>

#include <memory>

namespace redco::train {

/// Counts the floating-point operations of this thread's matrix products, convolutions and
/// attention, forward and backward, while it exists; these are nearly all of a model's work. A
/// multiplication and an addition count as one operation each. The formulas are those of PyTorch's
/// torch.utils.flop_counter, without the recomputation in backward (attention's scores,
/// checkpointed functions), which is not work of the model (arXiv 2204.02311, appendix B). For
/// sharded tensors only this process's part counts.
class REDCO_API FlopCounter {
 public:
  /// The destructor adds the operations to `count`, unless an exception leaves the scope.
  explicit FlopCounter(double& count);
  ~FlopCounter();
  FlopCounter(const FlopCounter&) = delete;
  FlopCounter& operator=(const FlopCounter&) = delete;

 private:
  static std::unique_ptr<at::ObserverContext> on_call(const at::RecordFunction& call);
  static void on_end(const at::RecordFunction& call, at::ObserverContext* counted);

  double& total_;
  double count_ = 0;
  int n_exceptions_;
  FlopCounter* outer_;
  at::CallbackHandle handle_ = 0;
};

}  // namespace redco::train
