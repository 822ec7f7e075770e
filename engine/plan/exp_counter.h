#pragma once

#include <redco/export.h>

#include <ATen/record_function.h>

#include <memory>

namespace redco::plan {

/// Counts the evaluations of exp in this thread's operators while it exists, also of those that
/// other operators call. An inner counter takes over while it exists. A function that takes k times
/// as long as exp counts as k evaluations, as do slow pooling and the weights of convolutions.
class REDCO_API ExpCounter {
 public:
  /// Adds to `count`.
  explicit ExpCounter(double& count);
  ~ExpCounter();
  ExpCounter(const ExpCounter&) = delete;
  ExpCounter& operator=(const ExpCounter&) = delete;

 private:
  static std::unique_ptr<at::ObserverContext> on_call(const at::RecordFunction& call);

  double* outer_;
  at::CallbackHandle handle_ = 0;
};

}  // namespace redco::plan
