// One optimizer step of a Trainer: micro-batches, backward, update.

#include <redco/trainer.h>

#include "batches.h"
#include "gradient_reducer.h"
#include "loss_scaler.h"
#include "pending_metrics.h"
#include "random.h"
#include "record_alike.h"
#include "step_meter.h"

#include "../mesh/spmd_log.h"

#include <redco/detail/recomputing.h>
#include <redco/error.h>
#include <redco/random.h>
#include <redco/sharding.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>
#include <ATen/record_function.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>

namespace redco {

namespace {

constexpr uint64_t train_stream = 1;

void check_loss(const at::Tensor& loss) {
  require(loss.defined(), "loss_fn returned no loss");
  require(loss.numel() == 1, "loss_fn returned a tensor of shape ", loss.sizes(),
          "; the loss must be one number: take its mean");
  require(loss.is_floating_point(), "loss_fn returned a loss of type ", loss.scalar_type(),
          "; it must be a floating-point number");
}

void check_has_graph(const at::Tensor& loss) {
  require(loss.requires_grad(),
          "loss_fn returned a loss that does not depend on any trained parameter: it must be "
          "computed from the params it is given, with gradients on");
}

// Synchronises with the device.
bool is_finite(const at::Tensor& number) {
  return !number.defined() || std::isfinite(full(number).item<double>());
}

// Converts to at least float32: a mean of many 16-bit losses would lose most of its digits in 16
// bits, and float16 cannot represent all token counts above 2048.
at::Tensor for_sums(const at::Tensor& number) {
  at::Tensor value = number.detach();
  return at::isReducedFloatingType(value.scalar_type()) ? value.to(at::kFloat) : value;
}

// Copies a loss_fn's in-place changes of untrained parameters, such as running statistics, from the
// cast copies back to the masters.
void take_back(const Tree& masters, const Tree& copies) {
  at::NoGradGuard no_grad;
  auto kept = named_tensors(masters), written = named_tensors(copies);
  for (size_t i = 0; i < kept.size(); ++i) {
    at::Tensor &master = kept[i].second, &copy = written[i].second;
    if (master.requires_grad() || !master.is_floating_point() || copy.is_same(master)) continue;
    // Batch normalization does not increment the version for its writes, so vectors are always
    // compared. Unchanged elements keep their full precision.
    if (copy._version() > 0 || master.dim() <= 1)
      master.copy_(
          at::where(copy.eq(master.to(copy.scalar_type())), master, copy.to(master.scalar_type())));
  }
}

}  // namespace

Tree Trainer::in_compute_dtype(const Tree& params) const {
  return needs_cast_ ? in_dtype(params, compute_dtype_) : params;
}

Autocast Trainer::autocast() const {
  c10::DeviceType device = device_.type();
  return Autocast(device, autocast_dtype_ ? autocast_dtype_ : redco::autocast_dtype(device));
}

at::Generator Trainer::batch_rng(uint64_t stream, size_t first, size_t size) const {
  at::Generator rng = make_rng(derive_seed(seed_, {stream, uint64_t(state_.step)}));
  counter_generator(rng)->set_batch({int64_t(first), int64_t(size)});
  return rng;
}

Tree Trainer::batch_of(const Dataset& examples, std::span<const int64_t> indices) const {
  RECORD_USER_SCOPE("collate");
  return meter_->collated([&] {
    return in_dtype(make_batch(examples, indices, collate_, device_, deployer_->mesh()),
                    compute_dtype_);
  });
}

Loss Trainer::loss_of(const Dataset& examples, std::span<const int64_t> indices, const Tree& params,
                      const at::Generator& rng, bool is_training) const {
  Tree batch = batch_of(examples, indices);
  Loss result;
  {
    RECORD_USER_SCOPE("forward");
    WithRng with_rng(rng);
    RecordDraws record_draws;
    Autocast region = autocast();
    result = loss_fn_(rng, state_, params, batch, is_training);
  }
  if (is_training && needs_cast_) take_back(state_.params, params);
  check_loss(result.loss);
  result.loss = result.loss.reshape({});
  if (result.weight.defined()) {
    require(result.weight.numel() == 1, "loss_fn returned a weight of shape ",
            result.weight.sizes(), "; it must be one number: the count the loss is a mean over");
    result.weight = result.weight.detach().reshape({}).to(for_sums(result.loss).options());
  } else {
    result.weight = at::scalar_tensor(double(indices.size()), for_sums(result.loss).options());
  }
  return result;
}

void Trainer::clear_gradients() {
  for (at::Tensor& leaf : leaves_) leaf.mutable_grad().reset();
}

void Trainer::add_up(std::vector<at::Tensor>& sums, bool is_last) {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < leaves_.size(); ++i) {
    at::Tensor& grad = leaves_[i].mutable_grad();
    if (grad.defined()) sums[i] = sums[i].defined() ? sums[i].add_(grad) : grad;
    grad = is_last ? sums[i] : at::Tensor();
  }
}

at::Tensor Trainer::accumulate(const Dataset& examples, std::span<const int64_t> indices,
                               int64_t micro) {
  BackwardOnThisThread on_this_thread;
  at::AutoGradMode with_grad(true);
  auto abandon_at_error = c10::make_scope_exit([this] {
    if (reducer_) reducer_->abandon();
  });
  clear_gradients();
  size_t n_batches = (indices.size() + size_t(micro) - 1) / size_t(micro);
  at::Tensor loss_sum, weight_sum, unit;
  std::vector<at::Tensor> sums(leaves_.size());
  for (size_t i = 0; i < n_batches; ++i) {
    check_interrupt();
    size_t first = i * size_t(micro);
    auto batch = indices.subspan(first, std::min(size_t(micro), indices.size() - first));
    at::Generator rng = batch_rng(train_stream, first, batch.size());
    Loss result =
        loss_of(examples, batch, in_compute_dtype(state_.params), rng, /*is_training=*/true);
    check_has_graph(result.loss);
    // Gradients accumulate in the leaves: the first is taken over without a zero fill or a copy, so
    // that only one set exists. With ZeRO 2 and 3 each micro-batch's gradients are reduced to their
    // ranks at once and accumulated there.
    bool is_shared = reducer_ && deployer_->zero() >= 2;
    bool is_reduced = reducer_ && (is_shared || i + 1 == n_batches);
    if (is_reduced) reducer_->begin();
    at::Tensor loss = for_sums(result.loss);
    at::Tensor weight = n_batches == 1 ? at::ones_like(loss) : result.weight;
    at::Tensor factor = weight;
    if (state_.loss_scale) {
      // Weights are divided by the first one: token counts would overflow float16.
      if (!unit.defined()) unit = divisor(weight) / state_.loss_scale->scale;
      factor = weight / unit;
    }
    RECORD_USER_SCOPE("backward");
    torch::autograd::backward({result.loss}, {factor.to(result.loss.scalar_type())}, false, false,
                              leaves_);
    if (is_reduced) reducer_->finish();
    if (n_batches == 1 && !state_.loss_scale) return loss;
    if (is_shared) add_up(sums, i + 1 == n_batches);
    loss = loss * weight;
    loss_sum = loss_sum.defined() ? loss_sum + loss : loss;
    weight_sum = weight_sum.defined() ? weight_sum + weight : weight;
  }
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> grads;
  for (const at::Tensor& leaf : leaves_)
    if (leaf.grad().defined()) grads.push_back(leaf.grad());
  weight_sum = divisor(weight_sum);
  if (!grads.empty()) at::_foreach_div_(grads, unit.defined() ? weight_sum / unit : weight_sum);
  return loss_sum / weight_sum;
}

at::Tensor Trainer::update(std::vector<at::Tensor> grads, const at::Tensor& loss) {
  RECORD_USER_SCOPE("update");
  at::NoGradGuard no_grad;
  std::vector<size_t> present;
  present.reserve(grads.size());
  for (size_t i = 0; i < grads.size(); ++i)
    if (grads[i].defined()) present.push_back(i);
  require(!present.empty(), "no gradient reached any of the ", leaves_.size(),
          " trained parameters: the loss must be computed from the params it is given");
  if (present != updated_) {
    // Usually happens once: optimizers cache data derived from this list.
    update_ = {};
    for (size_t i : present) {
      update_.names.push_back(names_[i]);
      update_.params.push_back(updates_[i]);
    }
    updated_ = present;
    if (present.size() < leaves_.size()) {
      std::string missing;
      for (size_t i = 0; i < grads.size(); ++i)
        if (!grads[i].defined()) missing += (missing.empty() ? "" : ", ") + names_[i];
      deployer_->log_info("These parameters got no gradient and stay as they are: " + missing, "",
                          state_.step);
    }
  }
  update_.grads.clear();
  for (size_t i : present) {
    at::Tensor& grad = grads[i];
    // The optimizers need it in the memory order of the parameter; a collective may have changed
    // that.
    if (grad.strides() != updates_[i].strides()) grad = at::empty_like(updates_[i]).copy_(grad);
    update_.grads.push_back(std::move(grad));
  }
  update_.step = state_.step;
  update_.grads_changed();
  at::Tensor norm = update_.global_norm();
  bool is_accepted = state_.loss_scale
                         ? accepts_step(*state_.loss_scale, norm, deployer_->mesh()->world())
                         : !leaves_out_nonfinite_ || (is_finite(norm) && is_finite(loss));
  if (is_accepted) {
    optimizer_->update(update_, state_.opt_state);
    ++state_.step;
  } else {
    ++n_left_out_;
  }
  update_.grads.clear();
  refresh_params();
  return norm;
}

PendingMetrics Trainer::run_step(const Dataset& examples, std::span<const int64_t> indices,
                                 int64_t micro) {
  rejoin();
  int64_t step = state_.step, n_left_out = n_left_out_;
  record("begins step", step, "of a training");
  auto counter = meter_->start(step, int64_t(indices.size()));
  Tree::Dict metrics;
  if (auto rate = learning_rate()) metrics["lr"] = *rate;
  if (state_.loss_scale) metrics["loss_scale"] = state_.loss_scale->scale;
  if (train_step_fn_) {
    check_interrupt();
    BackwardOnThisThread on_this_thread;
    at::AutoGradMode with_grad(true);
    Tree batch = batch_of(examples, indices);
    at::Generator rng = batch_rng(train_stream, 0, indices.size());
    WithRng with_rng(rng);
    RecordDraws record_draws;
    Autocast region = autocast();
    Tree own = train_step_fn_(rng, *this, batch);
    if (!own.is_none()) {
      require(own.is<Tree::Dict>(), "train_step_fn returned a ", own.kind(),
              "; it must return a dictionary of metrics");
      for (auto& [name, value] : own.as<Tree::Dict>()) metrics[name] = value;
    }
    // Each call counts as a step, even if it did not use the optimizer.
    if (state_.step == step && n_left_out_ == n_left_out) ++state_.step;
  } else {
    at::Tensor loss = accumulate(examples, indices, micro);
    metrics["loss"] = loss;
    std::vector<at::Tensor> grads;
    grads.reserve(leaves_.size());
    for (at::Tensor& leaf : leaves_) grads.push_back(std::move(leaf.mutable_grad()));
    metrics["grad_norm"] = update(std::move(grads), loss);
  }
  return PendingMetrics(step, metrics, n_left_out_ > n_left_out);
}

ValueAndGrad Trainer::value_and_grad(
    const std::function<at::Tensor(const Tree& params)>& function) const {
  BackwardOnThisThread on_this_thread;
  at::AutoGradMode with_grad(true);
  at::Tensor value;
  {
    Autocast region = autocast();
    Tree params = in_compute_dtype(state_.params);
    value = function(params);
    if (needs_cast_) take_back(state_.params, params);
  }
  // As for a loss_fn, backward runs without autocast.
  Autocast off(device_.type(), std::nullopt);
  check_loss(value);
  check_has_graph(value);
  std::vector<at::Tensor> factor;
  if (state_.loss_scale)
    factor = {(at::ones_like(for_sums(value)) * state_.loss_scale->scale).to(value.scalar_type())};
  auto grads =
      torch::autograd::grad({value}, leaves_, factor, std::nullopt, false, /*allow_unused=*/true);
  std::map<std::string, at::Tensor> by_name;
  for (size_t i = 0; i < leaves_.size(); ++i) {
    bool is_scaled = state_.loss_scale && grads[i].defined();
    by_name[names_[i]] = is_scaled ? grads[i] / state_.loss_scale->scale : grads[i];
  }
  Tree tree = map_tensors(state_.params, [&](const std::string& name, const at::Tensor&) {
    auto found = by_name.find(name);
    return found == by_name.end() ? at::Tensor() : found->second;
  });
  return {value.detach().reshape({}), std::move(tree)};
}

at::Tensor Trainer::apply_gradients(const Tree& grads) {
  at::NoGradGuard no_grad;
  Autocast off(device_.type(), std::nullopt);  // a train_step_fn runs under autocast
  auto given = named_tensors(grads);
  std::map<std::string, at::Tensor> by_name(given.begin(), given.end());
  std::vector<at::Tensor> ordered(leaves_.size());
  for (size_t i = 0; i < leaves_.size(); ++i) {
    auto found = by_name.find(names_[i]);
    if (found == by_name.end()) continue;
    const at::Tensor& leaf = leaves_[i];
    at::Tensor grad = found->second;
    by_name.erase(found);
    if (!grad.defined()) continue;
    require(grad.sizes() == leaf.sizes(), "apply_gradients: the gradient of '", names_[i],
            "' has shape ", grad.sizes(), ", the parameter ", leaf.sizes());
    // The optimizers need the gradients in the memory order of the parameters, and clip in place.
    ordered[i] = at::empty_like(updates_[i].detach()).copy_(grad);
  }
  for (const auto& [name, grad] : by_name)
    require(!grad.defined(), "apply_gradients: there is no trained parameter '", name, "'");
  return update(std::move(ordered), {});
}

}  // namespace redco
