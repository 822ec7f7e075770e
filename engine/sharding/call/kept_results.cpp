// Selective recomputation: which operators' results are kept, and how a second run takes them.

#include "../tensor/sharded_tensor.h"
#include "map_tensors.h"

#include <redco/detail/kept_results.h>

#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <iterator>
#include <utility>

namespace redco {

using namespace sharding;

namespace {

// Keeps a product over 256 bfloat16 or 512 float32 features, and attention over 256 positions. The
// scores of attention cost less.
std::atomic<double> least_flops = 256;

thread_local KeptResults* current_results = nullptr;
thread_local KeptResults::Pass current_pass = KeptResults::Pass::first;

// Returns a tensor that shares the memory and the count of writes, but not autograd's history.
at::Tensor without_history(const at::Tensor& tensor) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(),
                                                  /*allow_tensor_metadata_change=*/true));
}

// Calls `function` with each defined tensor.
template <class Function>
void for_tensors(c10::ArrayRef<c10::IValue> results, const Function& function) {
  for (const c10::IValue& value : results)
    if (value.isTensor() && value.toTensor().defined()) function(value.toTensor());
}

// The memory of this process; null if it has none.
const void* storage_of(const at::Tensor& tensor) {
  const ShardedTensorImpl* impl = sharded_impl(tensor);
  const at::Tensor& local = impl ? impl->held() : tensor;
  return local.defined() && local.has_storage() ? local.storage().unsafeGetStorageImpl() : nullptr;
}

int64_t bytes_of(const std::vector<c10::IValue>& results) {
  int64_t bytes = 0;
  for_tensors(results, [&](const at::Tensor& tensor) {
    bytes += tensor.numel() * int64_t(tensor.element_size());
  });
  return bytes;
}

}  // namespace

KeptResults::Scope::Scope(KeptResults* results, Pass pass)
    : outer_(std::exchange(current_results, results)),
      outer_pass_(std::exchange(current_pass, pass)),
      sees_calls_(results ? c10::DispatchKeySet(c10::DispatchKey::Fake) : c10::DispatchKeySet()) {
  if (results) results->next_ = 0;
}

KeptResults::Scope::~Scope() {
  current_results = outer_;
  current_pass = outer_pass_;
}

void KeptResults::set_least_flops(double per_byte) { least_flops = per_byte; }

KeptResults* KeptResults::current() { return current_results; }

bool KeptResults::take(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  if (current_pass == Pass::first || next_ == calls_.size()) return false;
  // A second backward pass through the same graph finds nothing.
  Call call = std::exchange(calls_[next_++], {});
  // The function called another operator than before, which its caller reports.
  if (call.results.empty() || call.op != &op.schema()) return false;
  for (const Writes& writes : call.writes)
    if (writes.counter.current_version() != writes.number) return false;
  torch::jit::drop(stack, op.schema().arguments().size());
  std::move(call.results.begin(), call.results.end(), std::back_inserter(stack));
  return true;
}

void KeptResults::keep(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                       double flops) {
  if (current_pass == Pass::second) return;
  Call call{&op.schema(), {}};
  call.results.assign(stack.end() - std::ptrdiff_t(op.schema().returns().size()), stack.end());
  if (flops < least_flops * double(bytes_of(call.results))) call.results.clear();
  for (c10::IValue& value : call.results) map_tensors(value, without_history);
  for_tensors(call.results, [&](const at::Tensor& tensor) {
    if (const void* memory = storage_of(tensor)) call_of_memory_[memory] = calls_.size();
    count_writes(call, tensor);
  });
  calls_.push_back(std::move(call));
}

void KeptResults::look_at(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (current_pass == Pass::second || call_of_memory_.empty()) return;
  const size_t n = op.schema().returns().size();
  c10::ArrayRef<c10::IValue> results(stack.data() + (stack.size() - n), n);
  for_tensors(results, [&](const at::Tensor& tensor) {
    auto found = call_of_memory_.find(storage_of(tensor));
    if (found != call_of_memory_.end()) count_writes(calls_[found->second], tensor);
  });
}

void KeptResults::count_writes(Call& call, const at::Tensor& tensor) {
  const c10::VariableVersion& counter = tensor.unsafeGetTensorImpl()->version_counter();
  call.writes.push_back({counter, counter.current_version()});
}

}  // namespace redco
