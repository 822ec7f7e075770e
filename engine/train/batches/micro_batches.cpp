// Losses that compare the examples of all micro-batches of a step.

#include <redco/detail/micro_batches.h>
#include <redco/error.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>

namespace redco {

namespace {

thread_local MicroBatches* running_micro_batches = nullptr;

}  // namespace

MicroBatches::MicroBatches(size_t count) : count_(count), outer_(running_micro_batches) {
  running_micro_batches = this;
}

MicroBatches::~MicroBatches() { running_micro_batches = outer_; }

void MicroBatches::begin(size_t i, bool collects) {
  is_collected_ = is_collected_ || (collects_ && !collects);
  at_ = i;
  n_calls_ = 0;
  collects_ = collects;
}

at::Tensor MicroBatches::gather(const at::Tensor& x) {
  const size_t call = n_calls_++;
  require(x.dim() > 0,
          "gather_micro_batches: expected a tensor with a dimension of examples, got a "
          "number");
  if (collects_) {
    if (call == calls_.size()) calls_.emplace_back();
    require(calls_[call].size() == at_,
            "gather_micro_batches: the loss must gather as often in each micro-batch");
    calls_[call].push_back(x.detach());
    return x;
  }
  if (!is_collected_) return x;
  require(call < calls_.size() && calls_[call].size() == count_ &&
              calls_[call][at_].sizes() == x.sizes(),
          "gather_micro_batches: the loss must gather the same in each pass, got ", x.sizes(),
          " for call ", call + 1);
  std::vector<at::Tensor> parts = calls_[call];
  const auto factor = double(count_);
  parts[at_] = x * factor - (x * (factor - 1)).detach();
  return at::cat(parts, 0);
}

at::Tensor gather_micro_batches(const at::Tensor& x) {
  return running_micro_batches == nullptr ? x : running_micro_batches->gather(x);
}

}  // namespace redco
