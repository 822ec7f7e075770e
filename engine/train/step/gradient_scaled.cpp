// Optimizers that divide gradients by a running size: RMSprop, Adagrad and LAMB.

#include "../../optim/with_learning_rate.h"

#include <redco/error.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/where.h>
#include <c10/core/ScalarType.h>

namespace redco {

using namespace train;

namespace {

using Tensors = std::vector<at::Tensor>;

// The gradients of a group, with the decay added (L2).
Tensors decayed(const Update& update, const ParameterGroup& group) {
  Tensors grads = select(update.grads, group);
  if (group.weight_decay == 0) return grads;
  return at::_foreach_add(grads, select(update.params, group), group.weight_decay);
}

class RMSprop : public WithLearningRate<RMSpropOptions> {
 public:
  explicit RMSprop(RMSpropOptions options) : WithLearningRate("rmsprop", std::move(options)) {
    check_fraction("rmsprop", "alpha", options_.alpha);
    check_at_least("rmsprop", "eps", options_.eps, 0);
    check_at_least("rmsprop", "momentum", options_.momentum, 0);
  }

  Tree slots(const std::vector<NamedTensor>& params) const override {
    Tree::Dict state{{"square_avg", zeros_like(params)}};
    if (options_.momentum != 0) state["momentum_buffer"] = zeros_like(params);
    if (options_.centered) state["grad_avg"] = zeros_like(params);
    return state;
  }

  void apply(Update& update, Tree& state, double learning_rate) const override {
    double alpha = options_.alpha;
    for (const ParameterGroup& group : groups(update)) {
      Tensors params = select(update.params, group), grads = decayed(update, group);
      Tensors square_avgs = select(state, "square_avg", update, group);
      at::_foreach_mul_(square_avgs, alpha);
      at::_foreach_addcmul_(square_avgs, grads, grads, 1 - alpha);
      Tensors sizes;
      if (options_.centered) {
        Tensors grad_avgs = select(state, "grad_avg", update, group);
        at::_foreach_lerp_(grad_avgs, grads, 1 - alpha);
        sizes = at::_foreach_addcmul(square_avgs, grad_avgs, grad_avgs, -1);
        at::_foreach_sqrt_(sizes);
      } else {
        sizes = at::_foreach_sqrt(square_avgs);
      }
      at::_foreach_add_(sizes, options_.eps);
      if (options_.momentum == 0) {
        at::_foreach_addcdiv_(params, grads, sizes, -learning_rate);
        continue;
      }
      Tensors buffers = select(state, "momentum_buffer", update, group);
      at::_foreach_mul_(buffers, options_.momentum);
      at::_foreach_addcdiv_(buffers, grads, sizes);
      at::_foreach_add_(params, buffers, -learning_rate);
    }
  }
};

class Adagrad : public WithLearningRate<AdagradOptions> {
 public:
  explicit Adagrad(AdagradOptions options) : WithLearningRate("adagrad", std::move(options)) {
    check_at_least("adagrad", "lr_decay", options_.lr_decay, 0);
    check_at_least("adagrad", "eps", options_.eps, 0);
    check_at_least("adagrad", "initial_accumulator_value", options_.initial_accumulator_value, 0);
  }

  Tree slots(const std::vector<NamedTensor>& params) const override {
    Tree::Dict sums;
    for (const auto& [name, param] : params)
      sums[name] = at::full_like(param.detach(), options_.initial_accumulator_value);
    return Tree::Dict{{"sum", std::move(sums)}};
  }

  void apply(Update& update, Tree& state, double learning_rate) const override {
    double rate = learning_rate / (1 + double(update.step) * options_.lr_decay);
    for (const ParameterGroup& group : groups(update)) {
      Tensors grads = decayed(update, group), sums = select(state, "sum", update, group);
      at::_foreach_addcmul_(sums, grads, grads);
      Tensors sizes = at::_foreach_sqrt(sums);
      at::_foreach_add_(sizes, options_.eps);
      at::_foreach_addcdiv_(select(update.params, group), grads, sizes, -rate);
    }
  }
};

class Lamb : public WithLearningRate<LambOptions> {
 public:
  explicit Lamb(LambOptions options) : WithLearningRate("lamb", std::move(options)) {
    check_betas("lamb", options_.betas);
    check_at_least("lamb", "eps", options_.eps, 0);
  }

  Tree slots(const std::vector<NamedTensor>& params) const override {
    return Tree::Dict{{"exp_avg", zeros_like(params)},
                      {"exp_avg_sq", zeros_like(params)},
                      {"step", zero_step(params)}};
  }

  void apply(Update& update, Tree& state, double learning_rate) const override {
    auto [beta1, beta2] = options_.betas;
    at::Tensor step = state.at("step").tensor();
    step.add_(1);
    // In float32, 1 - beta2 would lose its digits.
    at::Tensor steps = step.to(at::kDouble);
    at::Tensor correction1 = 1 - at::pow(beta1, steps), correction2 = 1 - at::pow(beta2, steps);
    for (const ParameterGroup& group : groups(update)) {
      Tensors params = select(update.params, group), grads = select(update.grads, group);
      Tensors exp_avgs = select(state, "exp_avg", update, group);
      Tensors exp_avg_sqs = select(state, "exp_avg_sq", update, group);
      at::_foreach_lerp_(exp_avgs, grads, 1 - beta1);
      at::_foreach_mul_(exp_avg_sqs, beta2);
      at::_foreach_addcmul_(exp_avg_sqs, grads, grads, 1 - beta2);
      Tensors changes;
      for (size_t i = 0; i < params.size(); ++i) {
        at::Tensor size = (exp_avg_sqs[i] / correction2).sqrt_().add_(options_.eps);
        at::Tensor& change = changes.emplace_back((exp_avgs[i] / correction1).div_(size));
        if (group.weight_decay != 0) change.add_(params[i], group.weight_decay);
      }
      // The explicit dtype makes 16-bit values accumulate in float32.
      at::ScalarType type = c10::promoteTypes(at::kFloat, params.front().scalar_type());
      Tensors norms = at::_foreach_norm(params, 2, type);
      Tensors change_norms = at::_foreach_norm(changes, 2, type);
      for (size_t i = 0; i < params.size(); ++i) {
        at::Tensor is_zero = (norms[i] == 0).logical_or(change_norms[i] == 0);
        at::Tensor ratio = at::where(is_zero, at::ones_like(norms[i]), norms[i] / change_norms[i]);
        params[i].sub_(changes[i].mul_(ratio * learning_rate));
      }
    }
  }
};

}  // namespace

std::shared_ptr<Optimizer> rmsprop(RMSpropOptions options) {
  return std::make_shared<RMSprop>(std::move(options));
}

std::shared_ptr<Optimizer> adagrad(AdagradOptions options) {
  return std::make_shared<Adagrad>(std::move(options));
}

std::shared_ptr<Optimizer> lamb(LambOptions options) {
  return std::make_shared<Lamb>(std::move(options));
}

}  // namespace redco
