// While a thread includes the dispatch key TESTING_ONLY_GenericMode, each of its operator calls
// passes through the fallback here. LibTorch registers nothing on this key, which is above all keys
// that LibTorch uses.

#include <redco/detail/operator_interceptor.h>

#include <torch/library.h>

#include <utility>

namespace redco {

namespace {

constexpr c10::DispatchKey key = c10::DispatchKey::TESTING_ONLY_GenericMode;
constexpr c10::DispatchKeySet below_this(c10::DispatchKeySet::FULL_AFTER, key);

thread_local OperatorInterceptor* innermost = nullptr;

}  // namespace

struct Interception {
  static void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                       torch::jit::Stack* stack) {
    bool is_replaced = false;
    for (OperatorInterceptor* each = innermost; each != nullptr; each = each->outer_)
      is_replaced |= each->before(op, *stack);
    if (!is_replaced) return op.redispatchBoxed(keys & below_this, stack);
    // The new arguments may have other dispatch keys, so dispatch starts again without this key.
    c10::impl::ExcludeDispatchKeyGuard not_again(key);
    op.callBoxed(stack);
  }

  static void before_function(std::vector<at::Tensor>& tensors) {
    // Operators inside of others are not seen either.
    if (c10::impl::tls_is_dispatch_key_excluded(key)) return;
    for (OperatorInterceptor* each = innermost; each != nullptr; each = each->outer_)
      each->before_function(tensors);
  }
};

std::vector<at::Tensor> intercepted(std::vector<at::Tensor> tensors) {
  Interception::before_function(tensors);
  return tensors;
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&Interception::fallback>());
}

OperatorInterceptor::OperatorInterceptor()
    : outer_(std::exchange(innermost, this)), included_(key) {}

OperatorInterceptor::~OperatorInterceptor() { innermost = outer_; }

}  // namespace redco
