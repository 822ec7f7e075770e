// Changes gradients before the optimizer reads them: clipping, and the decay of weights.

#include "log_actions.h"
#include "parameter_groups.h"

#include <redco/error.h>
#include <redco/optim.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_clamp_max.h>
#include <ATen/ops/_foreach_clamp_min.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>

namespace redco {

using namespace train;

const at::Tensor& Update::global_norm() {
  if (!global_norm_.defined()) {
    at::NoGradGuard no_grad;
    // The explicit dtype makes 16-bit gradients accumulate in float32.
    at::ScalarType type = at::kFloat;
    for (const at::Tensor& grad : grads) type = c10::promoteTypes(type, grad.scalar_type());
    global_norm_ = grads.empty()
                       ? at::zeros({})
                       : at::linalg_vector_norm(at::stack(at::_foreach_norm(grads, 2, type)), 2);
  }
  return global_norm_;
}

namespace {

class ClipByGlobalNorm : public Optimizer {
 public:
  explicit ClipByGlobalNorm(double max_norm) : max_norm_(max_norm) {
    require(max_norm > 0, "clip_by_global_norm: max_norm = ", max_norm, " must be positive");
  }

  Tree init(const std::vector<NamedTensor>&) const override { return Tree::Dict{}; }

  void update(Update& update, Tree&) const override {
    at::NoGradGuard no_grad;
    log_settings("clip_by_global_norm", {{"max_norm", max_norm_}});
    at::Tensor norm = update.global_norm();
    // On the CPU reading the norm is cheap, and most steps need no pass over the gradients. With
    // this comparison a NaN norm turns the gradients into NaN, as it does on a GPU.
    if (norm.is_cpu() && norm.item<double>() <= max_norm_) return;
    // The added constant is that of PyTorch's clip_grad_norm_.
    at::Tensor scale = norm.add(1e-6).reciprocal_().mul_(max_norm_).clamp_max_(1);
    at::_foreach_mul_(update.own_grads(), scale);
    update.grads_changed(norm * scale);
  }

  Stage stage() const override { return Stage::gradients; }

 private:
  double max_norm_;
};

class ClipByValue : public Optimizer {
 public:
  explicit ClipByValue(double max_value) : max_value_(max_value) {
    require(max_value > 0, "clip_by_value: max_value = ", max_value, " must be positive");
  }

  Tree init(const std::vector<NamedTensor>&) const override { return Tree::Dict{}; }

  void update(Update& update, Tree&) const override {
    at::NoGradGuard no_grad;
    log_settings("clip_by_value", {{"max_value", max_value_}});
    auto& grads = update.own_grads();
    at::_foreach_clamp_max_(grads, max_value_);
    at::_foreach_clamp_min_(grads, -max_value_);
    update.grads_changed();
  }

  Stage stage() const override { return Stage::gradients; }

 private:
  double max_value_;
};

class AddDecayedWeights : public Optimizer {
 public:
  AddDecayedWeights(double weight_decay, DecayMask mask)
      : weight_decay_(weight_decay), mask_(std::move(mask)) {
    check_at_least("add_decayed_weights", "weight_decay", weight_decay, 0);
  }

  Tree init(const std::vector<NamedTensor>&) const override { return Tree::Dict{}; }

  void update(Update& update, Tree&) const override {
    at::NoGradGuard no_grad;
    log_settings("add_decayed_weights", {{"weight_decay", weight_decay_}});
    auto& grads = update.own_grads();
    for (const ParameterGroup& group : update.groups(*this, weight_decay_, mask_))
      if (group.weight_decay != 0)
        at::_foreach_add_(select(grads, group), select(update.params, group), weight_decay_);
    update.grads_changed();
  }

  Stage stage() const override { return Stage::gradients; }
  void check(const std::vector<NamedTensor>& params) const override {
    check_patterns("add_decayed_weights: mask", mask_, params);
  }

 private:
  double weight_decay_;
  DecayMask mask_;
};

}  // namespace

std::shared_ptr<Optimizer> clip_by_global_norm(double max_norm) {
  return std::make_shared<ClipByGlobalNorm>(max_norm);
}

std::shared_ptr<Optimizer> clip_by_value(double max_value) {
  return std::make_shared<ClipByValue>(max_value);
}

std::shared_ptr<Optimizer> add_decayed_weights(double weight_decay, DecayMask mask) {
  return std::make_shared<AddDecayedWeights>(weight_decay, std::move(mask));
}

}  // namespace redco
