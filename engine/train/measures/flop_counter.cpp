#include "flop_counter.h"

#include "../../sharding/call/call_plan.h"

#include <redco/detail/recomputing.h>
#include <redco/sharding.h>

#include <ATen/core/Tensor.h>

#include <exception>
#include <utility>

namespace redco::train {

namespace {

// Operators on the local parts of a sharded tensor are separate calls, and so are those on tensors
// that functorch wraps.
bool is_wrapper(const at::Tensor& tensor) {
  return is_sharded(tensor) ||
         tensor.key_set().has_any(c10::DispatchKeySet(
             {c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper}));
}

thread_local FlopCounter* running_counter = nullptr;

// The number of counted calls that are running. Calls of their kernels are not counted again.
thread_local int n_counted_calls = 0;
struct CountedCall : at::ObserverContext {};

}  // namespace

std::unique_ptr<at::ObserverContext> FlopCounter::on_call(const at::RecordFunction& call) {
  // Threads that LibTorch starts inherit the callback.
  if (running_counter == nullptr) return nullptr;
  if (n_counted_calls > 0 || Recomputing::is_on()) return nullptr;
  sharding::FlopFormula formula = sharding::find_flops(call.name());
  if (formula == nullptr) return nullptr;
  for (const c10::IValue& input : call.inputs())
    if (input.isTensor() && is_wrapper(input.toTensor())) return nullptr;
  running_counter->count_ += formula(call.inputs());
  ++n_counted_calls;
  return std::make_unique<CountedCall>();
}

void FlopCounter::on_end(const at::RecordFunction&, at::ObserverContext* counted) {
  if (counted != nullptr) --n_counted_calls;
}

FlopCounter::FlopCounter(double& count)
    : total_(count),
      n_exceptions_(std::uncaught_exceptions()),
      outer_(std::exchange(running_counter, this)) {
  if (outer_ == nullptr)
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(on_call, on_end)
                                             .needsInputs(true)
                                             .scopes({at::RecordScope::FUNCTION}));
}

FlopCounter::~FlopCounter() {
  running_counter = outer_;
  if (outer_ == nullptr)
    at::removeCallback(handle_);
  else
    outer_->count_ += count_;
  if (std::uncaught_exceptions() == n_exceptions_) total_ += count_;
}

}  // namespace redco::train
