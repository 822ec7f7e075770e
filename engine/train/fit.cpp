// The loop over epochs: training, evaluation, what is told of both.

#include <redco/trainer.h>

#include "batches.h"
#include "pending_metrics.h"
#include "step_meter.h"
#include "step_profile.h"

#include <redco/error.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <span>
#include <utility>

namespace redco {

namespace {

// Streams of a Trainer's random numbers that must not meet; `train_step.cpp` has its own.
constexpr uint64_t eval_stream = 2;

void check_not_empty(const char* what, const Dataset& examples) {
  require(examples.size > 0, what, ": the set of examples is empty");
  require(bool(examples.collate), what, ": the dataset has no collate function");
}

}  // namespace

void Trainer::train(const Dataset& examples, int64_t per_device_batch_size,
                    const std::string& desc) {
  StepProfile none({}, device_.type(), {}, deployer_->run_log());
  train_epoch(examples, batching(per_device_batch_size, {}), epochs_done_++, desc, {}, {}, none);
}

void Trainer::fit(const FitOptions& options) {
  require(options.n_epochs >= 0, "fit: n_epochs = ", options.n_epochs, " must not be negative");
  require(!options.eval_metrics || options.eval_examples,
          "fit: eval_metrics needs eval_examples to evaluate");
  if (options.eval_examples) check_not_empty("fit: eval_examples", *options.eval_examples);
  Batching batches = batching(options.per_device_batch_size, options.global_batch_size);
  auto is_done = [&] { return options.max_steps && state_.step >= *options.max_steps; };

  StepProfile profile(options.profile, device_.type(), deployer_->workdir(), deployer_->run_log());
  if (options.eval_examples && options.eval_sanity_check) check_evaluation(options);
  for (int64_t epoch = 0; epoch < options.n_epochs && !is_done(); ++epoch) {
    const auto* each = std::get_if<std::function<Dataset(int64_t)>>(&options.train_examples);
    require(!each || *each, "fit: train_examples is an empty function");
    Dataset examples = each ? (*each)(epoch) : std::get<Dataset>(options.train_examples);
    std::string place =
        "(epoch " + std::to_string(epoch) + " / " + std::to_string(options.n_epochs) + ")";
    train_epoch(examples, batches, uint64_t(epoch), "Training " + place, options.max_steps,
                options.n_epochs, profile);
    if (options.eval_examples)
      evaluate(options, "Evaluating " + place, "epoch" + std::to_string(epoch));
  }
}

void Trainer::train_epoch(const Dataset& examples, const Batching& batching, uint64_t epoch,
                          const std::string& desc, std::optional<int64_t> max_steps,
                          std::optional<int64_t> n_epochs, StepProfile& profile) {
  check_not_empty("training", examples);
  setup_running_step(examples, batching.micro / deployer_->mesh()->size(Mesh::dp));
  std::vector<int64_t> order = epoch_order(examples.size, seed_, epoch);
  size_t batch_size = size_t(batching.micro * batching.accumulate);
  auto progress =
      deployer_->run_log().progress(training_desc(desc, batching), examples.size, "examples");
  if (n_epochs) {
    double n_steps = std::ceil(double(order.size()) / double(batch_size));
    double n = max_steps ? std::min(double(*n_epochs), double(*max_steps) / n_steps) : *n_epochs;
    progress->set_part_of_run(double(epoch) / n, double(epoch + 1) / n);
  }
  std::map<std::string, double> shown;
  std::optional<PendingMetrics> previous;
  try {
    for (size_t first = 0; first < order.size(); first += batch_size) {
      if (max_steps && state_.step >= *max_steps) break;
      auto indices = std::span(order).subspan(first, std::min(batch_size, order.size() - first));
      StepProfile::Step profiled(profile, state_.step);
      PendingMetrics current = run_step(examples, indices, batching.micro);
      // Read now that the next step is under way: nothing waits for the one just issued.
      if (previous) finish(*std::exchange(previous, std::nullopt), shown);
      previous.emplace(std::move(current));
      progress->advance(int64_t(indices.size()), shown);
    }
  } catch (...) {
    // The log ends with the last step that was done, whatever stopped the next one.
    if (previous) deployer_->log_metrics(previous->read(), previous->step());
    throw;
  }
  if (previous) {
    finish(*std::exchange(previous, std::nullopt), shown);
    progress->advance(0, shown);
  }
}

void Trainer::finish(PendingMetrics&& pending, std::map<std::string, double>& shown) {
  shown = pending.read();
  deployer_->log_metrics(meter_->with_measured(shown, pending.step()), pending.step());
  auto loss = shown.find("loss");
  require(loss == shown.end() || std::isfinite(loss->second) || pending.is_left_out(),
          "training: the loss of step ", pending.step(), " is ", loss->second,
          ". Look at the batch, for logarithms and divisions by zero in loss_fn, and for a "
          "learning rate that is too high. The parameters have been updated with its gradients");
}

double Trainer::eval_loss(const Dataset& examples, int64_t per_device_batch_size,
                          const std::string& desc) {
  check_not_empty("eval_loss", examples);
  setup_running_step(examples, per_device_batch_size);
  int64_t batch_size = deployer_->get_local_global_micro_batch_size(per_device_batch_size).second;
  at::NoGradGuard no_grad;
  Tree params = in_compute_dtype(state_.params);
  at::Tensor loss_sum, weight_sum;
  auto progress = deployer_->run_log().progress(desc, examples.size, "examples");
  for (int64_t first = 0; first < examples.size; first += batch_size) {
    check_interrupt();
    std::vector<int64_t> indices = index_range(first, std::min(first + batch_size, examples.size));
    at::Generator rng = batch_rng(eval_stream, size_t(first), indices.size());
    Loss batch = loss_of(examples, indices, params, rng, /*is_training=*/false);
    at::Tensor weight = batch.weight.to(at::kDouble);
    at::Tensor loss = batch.loss.to(at::kDouble) * weight;
    loss_sum = loss_sum.defined() ? loss_sum + loss : loss;
    weight_sum = weight_sum.defined() ? weight_sum + weight : weight;
    progress->advance(int64_t(indices.size()), {});
  }
  return (loss_sum / divisor(weight_sum)).item<double>();
}

void Trainer::evaluate(const FitOptions& options, const std::string& desc,
                       const std::string& name) {
  const Dataset& examples = *options.eval_examples;
  int64_t batch_size = options.eval_per_device_batch_size.value_or(options.per_device_batch_size);
  std::map<std::string, double> results;
  if (options.eval_loss) results["loss"] = eval_loss(examples, batch_size, desc);
  if (options.eval_metrics) {
    EvalResults found = options.eval_metrics(examples);
    results.merge(found.metrics);
    if (!found.outputs.is_none()) deployer_->save_outputs(found.outputs, name, state_.step);
  }
  if (results.empty()) return;
  deployer_->run_log().evaluation(state_.step, name, results);
}

void Trainer::check_evaluation(const FitOptions& options) {
  // Nothing of it shows in the run that follows, its random numbers included.
  uint64_t rng_count = deployer_->rng_count();
  int64_t batch_size = options.eval_per_device_batch_size.value_or(options.per_device_batch_size);
  Dataset examples = head(*options.eval_examples, batch_size);
  if (options.eval_loss) {
    eval_loss(examples, batch_size, "Evaluating (sanity check)");
    deployer_->log_info("Sanity check (for evaluation loss) passed.");
  }
  if (options.eval_metrics) {
    options.eval_metrics(examples);
    deployer_->log_info("Sanity check (for evaluation metrics) passed.");
  }
  deployer_->set_rng_count(rng_count);
}

}  // namespace redco
