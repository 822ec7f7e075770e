// One optimizer step of a Trainer: its losses, its update and its state.

#include "train_step.h"

#include "../../optim/log_actions.h"
#include "../../optim/parameter_groups.h"
#include "../../sharding/report/in_bytes.h"
#include "../batches/batches.h"
#include "../params/shard_params.h"
#include "../random.h"
#include "backward.h"
#include "loss_scaler.h"

#include "../../mesh/spmd_log.h"

#include <redco/detail/recomputing.h>
#include <redco/detail/staged_pass.h>
#include <redco/detail/without_statistics.h>
#include <redco/error.h>
#include <redco/random.h>
#include <redco/sharding.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/record_function.h>

#include <cmath>
#include <map>
#include <optional>
#include <utility>

namespace redco::train {

using namespace mesh;

namespace {

// Synchronises with the device.
bool is_finite(const at::Tensor& number) {
  return !number.defined() || std::isfinite(full(number).item<double>());
}

// The untrained vectors of a tree, such as running statistics, which a loss_fn may change in place.
std::vector<at::Tensor> untrained_vectors(const Tree& params) {
  std::vector<at::Tensor> found;
  for (const auto& [name, param] : named_tensors(params))
    if (param.is_floating_point() && !param.requires_grad() && param.dim() <= 1)
      found.push_back(param);
  return found;
}

// Returns the line of the log about the parameters that expert shards split.
std::string text_of_experts(const Tree& params, const Mesh& mesh) {
  constexpr Mesh::Dim dim = Mesh::dim_of(Mesh::expert);
  int64_t n = 0, whole = 0, here = 0;
  for (const auto& [name, param] : named_tensors(params)) {
    if (!placements_of(param)[dim].is_sharded()) continue;
    ++n;
    whole += int64_t(param.nbytes());
    here += int64_t(memory_of(param).nbytes());
  }
  const std::string shards = "n_expert_shards = " + std::to_string(mesh.size(dim));
  if (n == 0)
    return shards + ": no parameter is a weight of experts (nn.grouped_linear): nothing is split";
  return shards + ": " + std::to_string(n) + " parameters are weights of experts, " +
         sharding::in_bytes(here) + " of " + sharding::in_bytes(whole) + " on this process";
}

}  // namespace

TrainStep::TrainStep(const TrainerOptions& options, Custom custom, uint64_t seed)
    : deployer_(options.deployer),
      loss_fn_(options.loss_fn),
      custom_(std::move(custom)),
      precision_{options.compute_dtype, options.autocast_dtype, options.float8_products},
      lr_schedule_fn_(options.lr_schedule_fn),
      accumulate_grad_batches_(options.accumulate_grad_batches),
      collate_(options.collate),
      params_sharding_rules_(options.params_sharding_rules),
      before_batch_(options.before_batch),
      recompute_(options.recompute),
      offload_optimizer_(options.offload_optimizer),
      seed_(seed),
      custom_state_fn_(options.custom_state),
      set_custom_state_fn_(options.set_custom_state) {
  read_custom_state();
  at::ScalarType compute = precision_.compute_dtype;
  require(compute == at::kFloat || compute == at::kDouble || compute == at::kBFloat16 ||
              compute == at::kHalf,
          "Trainer: compute_dtype = ", compute,
          " is not one of float32, float64, bfloat16 and float16");
  require(!precision_.autocast_dtype || compute == at::kFloat,
          "Trainer: autocast_dtype = ", precision_.dtype(), " is for compute_dtype = float32, not ",
          compute);
  require(!precision_.autocast_dtype || at::isReducedFloatingType(*precision_.autocast_dtype),
          "Trainer: autocast_dtype = ", precision_.dtype(), " is not one of bfloat16 and float16");
  require(!precision_.float8_products || compute == at::kBFloat16,
          "Trainer: float8_products are for compute_dtype = bfloat16, not ", compute);
  int64_t accumulate = accumulate_grad_batches_.value_or(1);
  require(accumulate > 0, "Trainer: accumulate_grad_batches = ", accumulate, " must be positive");
  require(!custom_ || accumulate == 1, "Trainer: accumulate_grad_batches = ", accumulate,
          " has no effect on a train_step_fn, which is given the whole batch: accumulate in it");
}

void TrainStep::set_state(SetTrainStateOptions options) {
  const Mesh& mesh = *deployer_->mesh();
  OptimizerStep optimizer_step(without_statistics(options.optimizer ? std::move(options.optimizer)
                                                                    : optimizer_step_->optimizer(),
                                                  options.params),
                               deployer_, offload_optimizer_);
  require(options.step >= 0, "Trainer: step = ", options.step, " must not be negative");
  require(precision_.is_scaled() || !options.loss_scale,
          "Trainer: loss_scale is for compute_dtype = float16; ", precision_.dtype(),
          " needs none: leave it out");
  if (options.loss_scale) check_loss_scale(*options.loss_scale);
  at::Device device = deployer_->device().value_or(device_of(options.params));
  require(mesh.world().size() == 1 || device.type() == mesh.device().type(),
          "Trainer: the parameters are on ", device, ", and the processes work on ", mesh.device(),
          ": make the Deployer with device = \"", c10::DeviceTypeName(device.type(), true), "\"");

  // The list must not outlive the call: TrainedParams takes over tensors that nothing else holds.
  optimizer_step.optimizer()->check(floating_params(options.params));
  optimizer_step.log_missing(!custom_);
  TrainedParams params(std::move(options.params), deployer_, device,
                       [&](const std::string& name, const at::Tensor& param) {
                         return optimizer_step.optimizer()->trains(name, param);
                       });
  for (size_t i = 0; i < params.names().size(); ++i)
    require(!precision_.is_scaled() || params.leaves()[i].scalar_type() != at::kHalf,
            "Trainer: parameter '", params.names()[i],
            "' is float16; its updates would be too small for that: with compute_dtype = float16 "
            "give float32 params, which are cast for the loss");
  params_ = std::move(params);
  optimizer_step_ = std::move(optimizer_step);
  meter_ = std::make_unique<StepMeter>(deployer_->run_log().writes_files(), device,
                                       precision_.dtype(), mesh.world().size() == 1);
  needs_cast_ = false;
  for (const auto& [name, param] : named_tensors(params_->tree()))
    needs_cast_ |= param.is_floating_point() && param.scalar_type() != precision_.compute_dtype;
  state_.params = params_->tree();
  state_.opt_state = {};
  state_.step = options.step;
  state_.loss_scale =
      precision_.is_scaled() ? options.loss_scale.value_or(LossScale{}) : options.loss_scale;
  is_laid_out_ = false;
  given_opt_state_ = std::move(options.opt_state);
  // With model or expert shards the first batch determines the layout.
  if (deployer_->has_layout() && !depends_on_use(mesh)) shard_params({});
}

void TrainStep::lay_out(const Dataset& examples, int64_t per_device_batch_size) {
  if (is_laid_out_) return;
  deployer_->require_layout("laying out the parameters");
  if (!depends_on_use(*deployer_->mesh())) return shard_params({});
  Tree batch =
      in_dtype(layout_batch(examples, per_device_batch_size, collate_, device(), *deployer_),
               precision_.compute_dtype);
  shard_params([&](const Tree& params) {
    const Precision::Region region = precision_.region(device().type());
    // A loss may use the optimizer state, such as an average of the parameters.
    TrainState state = state_;
    state.params = params;
    state.opt_state = optimizer_step_->first_state(*params_, params);
    return loss_fn_(make_rng(seed_), state, in_compute_dtype(params), copied(batch), true).loss;
  });
}

void TrainStep::shard_params(const TracedForward& forward) {
  decisions_ = params_->lay_out(params_sharding_rules_, forward);
  const auto& [over_model, over_stages] = decisions_;
  if (deployer_->mesh()->size(Mesh::model) > 1)
    deployer_->log_info(to_string(over_model), "Sharding");
  if (deployer_->mesh()->size(Mesh::expert) > 1)
    deployer_->log_info(text_of_experts(params_->tree(), *deployer_->mesh()), "Sharding");
  if (!over_stages.stages.empty()) deployer_->log_info(to_string(over_stages), "Sharding");
  state_.params = params_->tree();
  if (has_masters_on_host()) params_->move_to_host(precision_.compute_dtype);
  state_.opt_state = optimizer_step_->init(*params_, std::exchange(given_opt_state_, std::nullopt));
  is_laid_out_ = true;  // set last, so that a failure so far, such as in a loss_fn, can be fixed
}

Batching TrainStep::batching(int64_t per_device_batch_size,
                             std::optional<int64_t> global_batch_size) const {
  int64_t micro = deployer_->get_local_global_micro_batch_size(per_device_batch_size).second;
  if (!global_batch_size) return {micro, accumulate_grad_batches_.value_or(1)};
  int64_t derived =
      deployer_->get_accumulate_grad_batches(*global_batch_size, per_device_batch_size);
  require(accumulate_grad_batches_.value_or(derived) == derived,
          "Trainer: global_batch_size = ", *global_batch_size, " means ", derived,
          " micro-batches of ", micro, ", accumulate_grad_batches says ",
          accumulate_grad_batches_.value_or(derived), ": give one of them");
  require(!custom_ || derived == 1, "Trainer: global_batch_size = ", *global_batch_size, " means ",
          derived, " micro-batches of ", micro,
          ", but a train_step_fn is given the whole batch: make per_device_batch_size larger");
  return {micro, derived};
}

std::vector<double> TrainStep::learning_rates() const {
  std::vector<double> rates;
  if (is_laid_out_)  // otherwise there is no state yet
    rates = optimizer_step_->optimizer()->learning_rates(state_.step, state_.opt_state);
  if (rates.empty() && lr_schedule_fn_) rates = {lr_schedule_fn_(state_.step)};
  return rates;
}

Tree TrainStep::in_compute_dtype(const Tree& params) const {
  return needs_cast_ ? in_dtype(params, precision_.compute_dtype) : params;
}

// ZeRO 3 gathers from the parts, and needs them on the device.
bool TrainStep::has_masters_on_host() const {
  return offload_optimizer_ && needs_cast_ && deployer_->zero() < 3;
}

Tree TrainStep::computed_params() const { return in_compute_dtype(state_.params); }

at::Generator TrainStep::batch_rng(Stream stream, size_t first, size_t size) const {
  at::Generator rng = make_rng(derive_seed(seed_, {uint64_t(stream), uint64_t(state_.step)}));
  counter_generator(rng)->set_batch({int64_t(first), int64_t(size)});
  return rng;
}

Tree TrainStep::batch_of(const Dataset& examples, std::span<const int64_t> indices) const {
  RECORD_USER_SCOPE("collate");
  return meter_->collated([&] {
    return in_dtype(make_batch(examples, indices, collate_, device(), deployer_->mesh()),
                    precision_.compute_dtype);
  });
}

Loss TrainStep::loss_of(const Tree& batch, size_t n_examples, const Tree& params,
                        const at::Generator& rng, bool is_training, StagedPass& pass) const {
  Loss result;
  {
    RECORD_USER_SCOPE("forward");
    WithRng with_rng(rng);
    LogDraws log_draws;
    const Precision::Region region = precision_.region(device().type());
    RecomputeBlocks recompute(is_training ? recompute_ : Recompute::none);
    StagedPass::Running running(pass);
    result = loss_fn_(rng, state_, params, batch, is_training);
  }
  if (is_training && needs_cast_) take_back(state_.params, params);
  check_loss(result.loss);
  result.loss = result.loss.reshape({});
  if (result.weight.defined()) {
    require(result.weight.numel() == 1, "loss_fn returned a weight of shape ",
            result.weight.sizes(), "; it must be one number: the count the loss is a mean over");
    require(
        !mesh_of(result.weight) || !mesh_of(result.weight)->stage(),
        "loss_fn returned a weight that one stage of n_pipeline_stages computed: compute it from "
        "the batch, as the number of its labels");
    result.weight = result.weight.detach().reshape({}).to(for_sums(result.loss).options());
  } else {
    result.weight = at::scalar_tensor(double(n_examples), for_sums(result.loss).options());
  }
  for (auto& [name, value] : result.metrics) {
    require(value.defined() && (value.numel() == 1 || is_ratio(value)),
            "loss_fn returned the metric '", name, "' of shape ", value.sizes(),
            "; it must be one number, or a sum and a count in a tensor of shape [2]");
    for (const char* own : {"loss", "grad_norm", "lr", "loss_scale"})
      require(name != own, "loss_fn returned a metric '", name,
              "', which each step has: give it another name");
    if (!is_ratio(value)) value = value.reshape({});
    value = value.detach().to(for_sums(result.loss).options());
  }
  return result;
}

at::Tensor TrainStep::update(std::vector<at::Tensor> grads, const at::Tensor& loss) {
  RECORD_USER_SCOPE("update");
  at::NoGradGuard no_grad;
  bool is_accepted = false;
  auto accepts = [&](const at::Tensor& norm) {
    is_accepted = state_.loss_scale
                      ? accepts_step(*state_.loss_scale, norm, deployer_->mesh()->world())
                      : !skips_nonfinite_ || (is_finite(norm) && is_finite(loss));
    return is_accepted;
  };
  at::Tensor norm =
      optimizer_step_->apply(*params_, std::move(grads), state_.step, state_.opt_state, accepts);
  ++(is_accepted ? n_updates_ : n_left_out_);
  params_->refresh();
  return norm;
}

PendingMetrics TrainStep::run(const Dataset& examples, std::span<const int64_t> indices,
                              int64_t micro) {
  params_->rejoin(state_.step);
  int64_t step = state_.step, n_updates = n_updates_, n_left_out = n_left_out_;
  log_action("begins step", step, "of a training");
  auto counter = meter_->start(step, int64_t(indices.size()));
  std::vector<at::Tensor> untrained, before;  // for a step that is left out
  if (skips_nonfinite_ || state_.loss_scale) untrained = untrained_vectors(state_.params);
  for (const at::Tensor& param : untrained) before.push_back(param.clone());
  Tree::Dict metrics;
  std::vector<double> rates = learning_rates();
  for (size_t i = 0; i < rates.size(); ++i)
    metrics[i == 0 ? "lr" : "lr_" + std::to_string(i + 1)] = rates[i];
  if (state_.loss_scale) metrics["loss_scale"] = state_.loss_scale->scale;
  if (custom_) {
    Tree own = run_custom(examples, indices);
    if (!own.is_none())
      for (auto& [name, value] : own.as<Tree::Dict>()) metrics[name] = value;
  } else {
    std::map<std::string, at::Tensor> means = accumulate(examples, indices, micro);
    for (const auto& [name, mean] : means) metrics[name] = mean;
    metrics["grad_norm"] = update(params_->take_gradients(), means["loss"]);
  }
  params_->release();  // a train_step_fn may have read the parameters after the update
  // A train_step_fn that did not use the optimizer counts as well.
  bool is_left_out = n_left_out_ > n_left_out && n_updates_ == n_updates;
  if (!is_left_out) {
    ++state_.step;
  } else {
    at::NoGradGuard no_grad;
    for (size_t i = 0; i < untrained.size(); ++i) untrained[i].copy_(before[i]);
  }
  return PendingMetrics(step, metrics, is_left_out);
}

void TrainStep::observe(const Metrics& metrics) {
  optimizer_step_->optimizer()->observe(metrics, state_.opt_state);
}

bool TrainStep::needs_metrics() const { return optimizer_step_->optimizer()->needs_metrics(); }

void TrainStep::read_custom_state() {
  if (custom_state_fn_) custom_state_ = custom_state_fn_();
}

void TrainStep::set_custom_state(const Tree& saved) {
  if (set_custom_state_fn_ && !saved.is_none()) set_custom_state_fn_(saved);
  read_custom_state();
}

}  // namespace redco::train
