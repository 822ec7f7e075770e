// The optimizers Adam, AdamW, SGD and Lion.

#include "with_learning_rate.h"

#include <redco/error.h>

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sign.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>

namespace redco {

using namespace train;

namespace {

// Adam and AdamW differ only in the fused operator.
template <class Options, auto fused>
class Adam : public WithLearningRate<Options> {
 public:
  Adam(const char* name, Options options) : WithLearningRate<Options>(name, std::move(options)) {
    check_betas(name, this->options_.betas);
    check_at_least(name, "eps", this->options_.eps, 0);
  }

  Tree slots(const std::vector<NamedTensor>& params) const override {
    return Tree::Dict{{"exp_avg", zeros_like(params)},
                      {"exp_avg_sq", zeros_like(params)},
                      {"step", zero_step(params)}};
  }

  void apply(Update& update, Tree& state, double learning_rate) const override {
    const Options& options = this->options_;
    at::Tensor step = state.at("step").tensor();
    step.add_(1);  // the operator reads it for each parameter but does not increment it
    for (const ParameterGroup& group : this->groups(update)) {
      check_layout(update, group);
      fused(select(update.params, group), select(update.grads, group),
            select(state, "exp_avg", update, group), select(state, "exp_avg_sq", update, group),
            std::vector<at::Tensor>(group.members.size(), step), learning_rate, options.betas,
            group.weight_decay, options.eps);
    }
  }
};

using Tensors = std::vector<at::Tensor>;

void fused_adam(const Tensors& params, const Tensors& grads, const Tensors& exp_avgs,
                const Tensors& exp_avg_sqs, const Tensors& steps, double learning_rate,
                const std::array<double, 2>& betas, double weight_decay, double eps) {
  at::_fused_adam_(params, grads, exp_avgs, exp_avg_sqs, {}, steps, learning_rate, betas[0],
                   betas[1], weight_decay, eps, /*amsgrad=*/false, /*maximize=*/false);
}

void fused_adamw(const Tensors& params, const Tensors& grads, const Tensors& exp_avgs,
                 const Tensors& exp_avg_sqs, const Tensors& steps, double learning_rate,
                 const std::array<double, 2>& betas, double weight_decay, double eps) {
  at::_fused_adamw_(params, grads, exp_avgs, exp_avg_sqs, {}, steps, learning_rate, betas[0],
                    betas[1], weight_decay, eps, /*amsgrad=*/false, /*maximize=*/false);
}

class SGD : public WithLearningRate<SGDOptions> {
 public:
  explicit SGD(SGDOptions options) : WithLearningRate("sgd", std::move(options)) {
    check_at_least("sgd", "momentum", options_.momentum, 0);
    require(!options_.nesterov || (options_.momentum > 0 && options_.dampening == 0),
            "sgd: nesterov needs a positive momentum and a dampening of 0; they are ",
            options_.momentum, " and ", options_.dampening);
  }

  Tree slots(const std::vector<NamedTensor>& params) const override {
    if (options_.momentum == 0) return Tree::Dict{};
    return Tree::Dict{{"momentum_buffer", zeros_like(params)}};
  }

  void apply(Update& update, Tree& state, double learning_rate) const override {
    // Only with dampening does the first gradient count differently from later ones.
    const bool is_first = options_.dampening != 0 && update.step == 0;
    for (const ParameterGroup& group : groups(update)) {
      check_layout(update, group);
      Tensors buffers;
      if (options_.momentum != 0) buffers = select(state, "momentum_buffer", update, group);
      const at::Tensor& first = update.params[group.members.front()];
      if (first.is_cpu() && at::isReducedFloatingType(first.scalar_type())) {
        apply_by_operators(update, group, buffers, learning_rate, is_first);
        continue;
      }
      at::_fused_sgd_(select(update.params, group), select(update.grads, group), buffers,
                      group.weight_decay, options_.momentum, learning_rate, options_.dampening,
                      options_.nesterov, /*maximize=*/false, is_first);
    }
  }

 private:
  // LibTorch 2.11's fused operator gives wrong numbers for 16-bit floats on a CPU.
  void apply_by_operators(const Update& update, const ParameterGroup& group, Tensors& buffers,
                          double learning_rate, bool is_first) const {
    Tensors params = select(update.params, group), grads = select(update.grads, group);
    if (group.weight_decay != 0) grads = at::_foreach_add(grads, params, group.weight_decay);
    if (options_.momentum != 0) {
      at::_foreach_mul_(buffers, options_.momentum);
      at::_foreach_add_(buffers, grads, is_first ? 1 : 1 - options_.dampening);
      grads = options_.nesterov ? at::_foreach_add(grads, buffers, options_.momentum) : buffers;
    }
    at::_foreach_add_(params, grads, -learning_rate);
  }
};

class Lion : public WithLearningRate<LionOptions> {
 public:
  explicit Lion(LionOptions options) : WithLearningRate("lion", std::move(options)) {
    check_betas("lion", options_.betas);
  }

  Tree slots(const std::vector<NamedTensor>& params) const override {
    return Tree::Dict{{"exp_avg", zeros_like(params)}};
  }

  void apply(Update& update, Tree& state, double learning_rate) const override {
    for (const ParameterGroup& group : groups(update)) {
      Tensors params = select(update.params, group);
      Tensors grads = select(update.grads, group);
      Tensors exp_avgs = select(state, "exp_avg", update, group);
      Tensors directions = at::_foreach_lerp(exp_avgs, grads, 1 - options_.betas[0]);
      at::_foreach_sign_(directions);
      if (group.weight_decay != 0)
        at::_foreach_mul_(params, 1 - learning_rate * group.weight_decay);
      at::_foreach_add_(params, directions, -learning_rate);
      at::_foreach_lerp_(exp_avgs, grads, 1 - options_.betas[1]);
    }
  }
};

}  // namespace

std::shared_ptr<Optimizer> adam(AdamOptions options) {
  return std::make_shared<Adam<AdamOptions, fused_adam>>("adam", std::move(options));
}

std::shared_ptr<Optimizer> adamw(AdamWOptions options) {
  return std::make_shared<Adam<AdamWOptions, fused_adamw>>("adamw", std::move(options));
}

std::shared_ptr<Optimizer> sgd(SGDOptions options) {
  return std::make_shared<SGD>(std::move(options));
}

std::shared_ptr<Optimizer> lion(LionOptions options) {
  return std::make_shared<Lion>(std::move(options));
}

}  // namespace redco
