// AdamW with moments of 8 bits.

#include "../kernels/adamw8bit.h"
#include "with_learning_rate.h"

#include <redco/error.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

namespace redco {

using namespace train;

namespace {

using Tensors = std::vector<at::Tensor>;

void step_in_8_bits(at::TensorList params, at::TensorList grads, at::TensorList exp_avgs,
                    at::TensorList exp_avg_sqs, at::TensorList absmaxs, const at::Tensor& step,
                    double learning_rate, double beta1, double beta2, double weight_decay,
                    double eps) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("redco::adamw8bit_", "")
                             .typed<decltype(step_in_8_bits)>();
  op.call(params, grads, exp_avgs, exp_avg_sqs, absmaxs, step, learning_rate, beta1, beta2,
          weight_decay, eps);
}

class AdamW8bit : public WithLearningRate<AdamW8bitOptions> {
 public:
  explicit AdamW8bit(AdamW8bitOptions options) : WithLearningRate("adamw8bit", std::move(options)) {
    check_betas("adamw8bit", options_.betas);
    check_at_least("adamw8bit", "eps", options_.eps, 0);
    require(options_.min_8bit_size >= kernels::moment_block,
            "adamw8bit: min_8bit_size = ", options_.min_8bit_size, " must be at least ",
            kernels::moment_block, ", the elements of a block");
  }

  Tree slots(const std::vector<NamedTensor>& params) const override {
    Tree::Dict exp_avg, exp_avg_sq, absmax;
    for (const auto& [name, param] : params) {
      at::TensorOptions options = at::TensorOptions(wide(param.scalar_type()));
      if (is_large(param)) {
        options = at::kByte;
        int64_t n = (param.numel() + kernels::moment_block - 1) / kernels::moment_block;
        absmax[name] = at::zeros({2, n}, at::device(param.device()).dtype(at::kFloat));
      }
      exp_avg[name] = as_state(at::zeros_like(param.detach(), options));
      exp_avg_sq[name] = as_state(at::zeros_like(param.detach(), options));
    }
    return Tree::Dict{{"exp_avg", exp_avg},
                      {"exp_avg_sq", exp_avg_sq},
                      {"absmax", absmax},
                      {"step", zero_step(params)}};
  }

  void apply(Update& update, Tree& state, double learning_rate) const override {
    at::Tensor step = state.at("step").tensor();
    step.add_(1);
    for (const ParameterGroup& group : groups(update)) {
      check_layout(update, group);
      ParameterGroup large{{}, group.weight_decay}, small = large;
      for (size_t i : group.members)
        (is_large(update.params[i]) ? large : small).members.push_back(i);
      if (!large.members.empty()) update_large(update, large, state, step, learning_rate);
      if (!small.members.empty()) update_small(update, small, state, step, learning_rate);
    }
  }

 private:
  bool is_large(const at::Tensor& param) const { return param.numel() >= options_.min_8bit_size; }

  static at::ScalarType wide(at::ScalarType type) {
    return type == at::kDouble ? at::kDouble : at::kFloat;
  }

  void update_large(const Update& update, const ParameterGroup& group, const Tree& state,
                    const at::Tensor& step, double learning_rate) const {
    Tensors absmax;
    const auto& all = state.at("absmax").as<Tree::Dict>();
    for (size_t i : group.members) {
      auto found = all.find(update.names[i]);
      require(found != all.end(), "optimizer state: no 'absmax' for parameter '", update.names[i],
              "'; was the state made with another min_8bit_size?");
      absmax.push_back(found->second.tensor());
    }
    step_in_8_bits(select(update.params, group), select(update.grads, group),
                   select(state, "exp_avg", update, group),
                   select(state, "exp_avg_sq", update, group), absmax, step, learning_rate,
                   options_.betas[0], options_.betas[1], group.weight_decay, options_.eps);
  }

  void update_small(const Update& update, const ParameterGroup& group, const Tree& state,
                    const at::Tensor& step, double learning_rate) const {
    const Tensors params = select(update.params, group);
    Tensors own = params, grads = select(update.grads, group);
    for (size_t i = 0; i < own.size(); ++i) {
      own[i] = own[i].to(wide(own[i].scalar_type()));
      grads[i] = grads[i].to(own[i].scalar_type());
    }
    at::_fused_adamw_(own, grads, select(state, "exp_avg", update, group),
                      select(state, "exp_avg_sq", update, group), {}, Tensors(own.size(), step),
                      learning_rate, options_.betas[0], options_.betas[1], group.weight_decay,
                      options_.eps, /*amsgrad=*/false, /*maximize=*/false);
    for (size_t i = 0; i < own.size(); ++i)
      if (!own[i].is_same(params[i])) params[i].copy_(own[i]);
  }
};

}  // namespace

std::shared_ptr<Optimizer> adamw8bit(AdamW8bitOptions options) {
  return std::make_shared<AdamW8bit>(std::move(options));
}

}  // namespace redco
