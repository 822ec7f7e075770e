#pragma once

#include <redco/export.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <vector>

namespace redco {

/// Sees each operator that this thread calls, above autograd, vmap and autocast, while it exists:
/// those that other operators and backward call, too.
class REDCO_API OperatorInterceptor {
 public:
  OperatorInterceptor();
  virtual ~OperatorInterceptor();
  OperatorInterceptor(const OperatorInterceptor&) = delete;
  OperatorInterceptor& operator=(const OperatorInterceptor&) = delete;

  /// Called before the operator. Returns whether it has replaced arguments; then it does not see
  /// the operators that this one calls.
  virtual bool before(const c10::OperatorHandle& op, torch::jit::Stack& stack) = 0;
  /// Called before a function that autograd records as a whole, which is no operator; may replace
  /// its tensors.
  virtual void before_function(std::vector<at::Tensor>&) {}

 private:
  friend struct Interception;
  OperatorInterceptor* outer_;
  c10::impl::IncludeDispatchKeyGuard included_;
};

/// Shows the tensors of such a function to the interceptors of this thread, and returns what they
/// have made of them.
REDCO_API std::vector<at::Tensor> intercepted(std::vector<at::Tensor> tensors);

}  // namespace redco
