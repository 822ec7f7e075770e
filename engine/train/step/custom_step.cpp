// A step that a script performs itself, with the gradients and the update of a TrainStep.

#include "../batches/batches.h"
#include "../random.h"
#include "backward.h"
#include "train_step.h"

#include "../../mesh/spmd_log.h"

#include <redco/detail/recomputing.h>
#include <redco/detail/staged_pass.h>
#include <redco/error.h>
#include <redco/random.h>
#include <redco/sharding.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/record_function.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>
#include <utility>

namespace redco::train {

Tree TrainStep::run_custom(const Dataset& examples, std::span<const int64_t> indices) {
  check_interrupt();
  if (before_batch_) before_batch_();
  BackwardOnThisThread on_this_thread;
  at::AutoGradMode with_grad(true);
  Tree batch = batch_of(examples, indices);
  at::Generator rng = batch_rng(train_stream, 0, indices.size());
  WithRng with_rng(rng);
  mesh::LogDraws log_draws;
  const Precision::Region region = precision_.region(device().type());
  is_in_custom_ = true;
  auto left = c10::make_scope_exit([this] { is_in_custom_ = false; });
  Tree metrics = custom_(rng, batch);
  require(metrics.is_none() || metrics.is<Tree::Dict>(), "train_step_fn returned a ",
          metrics.kind(), "; it must return a dictionary of metrics");
  return metrics;
}

std::vector<at::Tensor> TrainStep::gradients_of(const at::Tensor& value,
                                                const at::Tensor& first_gradient,
                                                StagedPass& pass) {
  RECORD_USER_SCOPE("backward");
  run_conversions_early(value);
  const std::vector<at::Tensor>& leaves = params_->leaves();
  GradientReducer* reducer = deployer_->zero() >= 2 ? params_->reducer() : nullptr;
  StagedPass::Running running(pass, /*is_backward=*/true);
  const at::Tensor gradient = first_gradient_of(value, first_gradient);
  if (!reducer)
    return torch::autograd::grad({value}, leaves, {gradient}, std::nullopt, false,
                                 /*allow_unused=*/true);
  // As in a step of the Trainer, no process keeps whole gradients of parameters whose gradients
  // ZeRO splits.
  std::vector<at::Tensor> own = params_->take_gradients();
  auto at_exit = c10::make_scope_exit([&] {
    reducer->abandon();
    params_->set_gradients(std::move(own));
  });
  reducer->begin();
  torch::autograd::backward({value}, {gradient}, false, false, leaves);
  reducer->finish();
  return params_->take_gradients();
}

ValueAndGrad TrainStep::value_and_grad(
    const std::function<at::Tensor(const Tree& params)>& function) {
  BackwardOnThisThread on_this_thread;
  at::AutoGradMode with_grad(true);
  at::Tensor value;
  StagedPass pass(deployer_->mesh(), StagedPass::as_written);
  {
    const Precision::Region region = precision_.region(device().type());
    RecomputeBlocks recompute(recompute_);
    Tree params = computed_params();
    StagedPass::Running running(pass);
    value = function(params);
    if (needs_cast_) take_back(state_.params, params);
  }
  // As for a loss_fn, backward runs without autocast.
  Autocast off(device().type(), std::nullopt);
  check_loss(value);
  check_has_graph(value);
  const bool is_of_stage = mesh_of(value) && mesh_of(value)->stage();
  const at::Tensor number = is_of_stage ? full(value.detach()) : value.detach();
  at::Tensor factor = at::ones_like(for_sums(number));
  if (state_.loss_scale) factor = factor * state_.loss_scale->scale;
  FirstGradient first_gradient(factor, value.scalar_type());
  std::vector<at::Tensor> grads = gradients_of(value, first_gradient.gradient, pass);
  if (state_.loss_scale) {
    at::Tensor divisor = factor;
    if (first_gradient.rest.defined()) divisor = divisor / first_gradient.rest;
    for (at::Tensor& grad : grads)  // not in place: two leaves may have one gradient
      if (grad.defined()) grad = grad / divisor;
  }
  pass.wait();
  return {number.reshape({}), params_->in_tree(grads)};
}

at::Tensor TrainStep::apply_gradients(const Tree& grads) {
  at::NoGradGuard no_grad;
  Autocast off(device().type(), std::nullopt);  // a train_step_fn runs under autocast
  auto given = named_tensors(grads);
  std::map<std::string, at::Tensor> by_name(given.begin(), given.end());
  std::vector<at::Tensor> ordered(params_->names().size());
  for (size_t i = 0; i < ordered.size(); ++i) {
    const std::string& name = params_->names()[i];
    auto found = by_name.find(name);
    if (found == by_name.end()) continue;
    const at::Tensor& leaf = params_->leaves()[i];
    at::Tensor grad = found->second;
    by_name.erase(found);
    if (!grad.defined()) continue;
    require(grad.sizes() == leaf.sizes(), "apply_gradients: the gradient of '", name,
            "' has shape ", grad.sizes(), ", the parameter ", leaf.sizes());
    // The optimizers need the gradients in the memory order of the parameters, and clip in place.
    ordered[i] = at::empty_like(params_->optimizer_views()[i].detach()).copy_(grad);
  }
  for (const auto& [name, grad] : by_name)
    require(!grad.defined(), "apply_gradients: there is no trained parameter '", name, "'");
  int64_t n_updates = n_updates_;
  at::Tensor norm = update(std::move(ordered), {});
  if (!is_in_custom_) state_.step += n_updates_ - n_updates;
  return norm;
}

}  // namespace redco::train
