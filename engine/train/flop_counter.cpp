#include "flop_counter.h"

#include "../sharding/call/call_plan.h"

#include <redco/detail/recomputing.h>
#include <redco/sharding.h>

#include <ATen/core/Tensor.h>

#include <exception>
#include <utility>

namespace redco {

namespace {

thread_local bool is_recomputing = false;

}  // namespace

namespace train {

namespace {

// Operators on the local parts of a sharded tensor are separate calls, and so are those on tensors
// that functorch wraps.
bool is_wrapper(const at::Tensor& tensor) {
  return is_sharded(tensor) ||
         tensor.key_set().has_any(c10::DispatchKeySet(
             {c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper}));
}

thread_local FlopCounter* running_counter = nullptr;

}  // namespace

std::unique_ptr<at::ObserverContext> FlopCounter::on_call(const at::RecordFunction& call) {
  // Threads that LibTorch starts inherit the callback.
  if (running_counter == nullptr) return nullptr;
  sharding::FlopFormula formula = sharding::find_flops(call.name());
  if (formula == nullptr || is_recomputing) return nullptr;
  for (const c10::IValue& input : call.inputs())
    if (input.isTensor() && is_wrapper(input.toTensor())) return nullptr;
  running_counter->count_ += formula(call.inputs());
  return nullptr;
}

FlopCounter::FlopCounter(double& count)
    : total_(count),
      n_exceptions_(std::uncaught_exceptions()),
      outer_(std::exchange(running_counter, this)) {
  if (outer_ == nullptr)
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(on_call).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

FlopCounter::~FlopCounter() {
  running_counter = outer_;
  if (outer_ == nullptr)
    at::removeCallback(handle_);
  else
    outer_->count_ += count_;
  if (std::uncaught_exceptions() == n_exceptions_) total_ += count_;
}

}  // namespace train

Recomputing::Recomputing(bool is_on) : outer_(std::exchange(is_recomputing, is_on)) {}
Recomputing::~Recomputing() { is_recomputing = outer_; }
bool Recomputing::is_on() { return is_recomputing; }

namespace {

thread_local bool recomputes_blocks = false;
thread_local int64_t n_marked_blocks = 0;

}  // namespace

RecomputeBlocks::RecomputeBlocks(bool is_on) : outer_(std::exchange(recomputes_blocks, is_on)) {}
RecomputeBlocks::~RecomputeBlocks() { recomputes_blocks = outer_; }
bool RecomputeBlocks::is_on() { return recomputes_blocks; }
void RecomputeBlocks::count_block() { ++n_marked_blocks; }
int64_t RecomputeBlocks::n_blocks() { return n_marked_blocks; }

}  // namespace redco
