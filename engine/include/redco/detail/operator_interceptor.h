#pragma once

#include <redco/export.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

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

 private:
  friend struct Interception;
  OperatorInterceptor* outer_;
  c10::impl::IncludeDispatchKeyGuard included_;
};

}  // namespace redco
