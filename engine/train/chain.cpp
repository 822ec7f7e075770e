// Clipping by global norm, and the optimizers that wrap others: chain and freeze.

#include "record_alike.h"

#include <redco/error.h>
#include <redco/optim.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>

namespace redco {

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
    record_settings("clip_by_global_norm", {{"max_norm", max_norm_}});
    at::Tensor norm = update.global_norm();
    // On the CPU reading the norm is cheap, and most steps need no pass over the gradients. With
    // this comparison a NaN norm turns the gradients into NaN, as it does on a GPU.
    if (norm.is_cpu() && norm.item<double>() <= max_norm_) return;
    // The added constant is that of PyTorch's clip_grad_norm_.
    at::Tensor scale = norm.add(1e-6).reciprocal_().mul_(max_norm_).clamp_max_(1);
    at::_foreach_mul_(update.grads, scale);
    update.grads_changed(norm * scale);
  }

  bool updates_params() const override { return false; }

 private:
  double max_norm_;
};

class Chain : public Optimizer {
 public:
  explicit Chain(std::vector<std::shared_ptr<Optimizer>> optimizers)
      : optimizers_(std::move(optimizers)) {
    require(!optimizers_.empty(), "chain: it needs at least an optimizer such as adamw");
    for (size_t i = 0; i < optimizers_.size(); ++i) {
      require(optimizers_[i] != nullptr, "chain: entry ", i + 1, " is empty");
      bool is_last = i + 1 == optimizers_.size();
      require(optimizers_[i]->updates_params() == is_last, "chain: entry ", i + 1, " of ",
              optimizers_.size(),
              is_last ? " only changes gradients: the last one must update the parameters (adamw, "
                        "sgd, ...)"
                      : " updates the parameters: only the last one may");
    }
  }

  Tree init(const std::vector<NamedTensor>& params) const override {
    Tree::List states;
    for (const auto& optimizer : optimizers_) states.push_back(optimizer->init(params));
    return states;
  }

  void update(Update& update, Tree& state) const override {
    auto& states = state.as<Tree::List>();
    require(states.size() == optimizers_.size(), "chain: the state is a list of ", states.size(),
            ", the chain has ", optimizers_.size(), " entries");
    for (size_t i = 0; i < optimizers_.size(); ++i) optimizers_[i]->update(update, states[i]);
  }

  bool updates_params() const override { return true; }

  bool trains(const std::string& name) const override {
    for (const auto& optimizer : optimizers_)
      if (!optimizer->trains(name)) return false;
    return true;
  }

  std::optional<double> learning_rate(int64_t step) const override {
    return optimizers_.back()->learning_rate(step);
  }

 private:
  std::vector<std::shared_ptr<Optimizer>> optimizers_;
};

class Freeze : public Optimizer {
 public:
  Freeze(std::shared_ptr<Optimizer> optimizer, std::function<bool(const std::string&)> frozen)
      : optimizer_(std::move(optimizer)), frozen_(std::move(frozen)) {
    require(optimizer_ != nullptr, "freeze: the optimizer is missing");
    require(bool(frozen_), "freeze: the test of what is frozen is missing");
  }

  Tree init(const std::vector<NamedTensor>& params) const override {
    std::vector<NamedTensor> trained;
    for (const auto& param : params)
      if (trains(param.first)) trained.push_back(param);
    return optimizer_->init(trained);
  }

  // Nothing to filter: `update` only holds parameters that are trained.
  void update(Update& update, Tree& state) const override { optimizer_->update(update, state); }

  bool updates_params() const override { return optimizer_->updates_params(); }

  bool trains(const std::string& name) const override {
    return !frozen_(name) && optimizer_->trains(name);
  }

  std::optional<double> learning_rate(int64_t step) const override {
    return optimizer_->learning_rate(step);
  }

 private:
  std::shared_ptr<Optimizer> optimizer_;
  std::function<bool(const std::string&)> frozen_;
};

}  // namespace

std::shared_ptr<Optimizer> clip_by_global_norm(double max_norm) {
  return std::make_shared<ClipByGlobalNorm>(max_norm);
}

std::shared_ptr<Optimizer> chain(std::vector<std::shared_ptr<Optimizer>> optimizers) {
  return std::make_shared<Chain>(std::move(optimizers));
}

std::shared_ptr<Optimizer> freeze(std::shared_ptr<Optimizer> optimizer,
                                  std::function<bool(const std::string&)> frozen) {
  return std::make_shared<Freeze>(std::move(optimizer), std::move(frozen));
}

}  // namespace redco
