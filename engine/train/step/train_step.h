#pragma once

#include "../measures/pending_metrics.h"
#include "../measures/step_meter.h"
#include "../params/optimizer_step.h"
#include "../params/trained_params.h"
#include "precision.h"

#include <redco/detail/staged_pass.h>
#include <redco/trainer.h>

#include <ATen/core/Generator.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace redco::train {

/// The streams of a Trainer's random numbers.
enum Stream : uint64_t { train_stream = 1, eval_stream, collate_stream, eval_collate_stream };

/// The batches of an optimizer step.
struct Batching {
  int64_t micro;       ///< examples of a micro-batch, over all processes
  int64_t accumulate;  ///< micro-batches

  int64_t global_batch_size() const { return micro * accumulate; }
};

/// One step of training: the loss of micro-batches, its gradients, and the update. It has the state
/// that steps change.
class TrainStep {
 public:
  /// A step that a script performs itself; returns a dictionary of metrics or none.
  using Custom = std::function<Tree(at::Generator rng, const Tree& batch)>;

  /// Uses all options but those of the state. `custom` replaces the step if it is set.
  TrainStep(const TrainerOptions& options, Custom custom, uint64_t seed);

  /// Starts over from `params`; the first call must have an optimizer. Throws Error if they cannot
  /// be trained.
  void set_state(SetTrainStateOptions options);

  bool is_laid_out() const { return is_laid_out_; }
  /// Lays the parameters out from the way the loss of the first `examples` uses them, once.
  void lay_out(const Dataset& examples, int64_t per_device_batch_size);

  /// Throws Error if the sizes contradict each other or the options.
  Batching batching(int64_t per_device_batch_size, std::optional<int64_t> global_batch_size) const;

  /// Performs one step on the examples with these indices, in micro-batches of `micro` examples.
  PendingMetrics run(const Dataset& examples, std::span<const int64_t> indices, int64_t micro);

  /// The batch of the examples with these indices.
  Tree batch_of(const Dataset& examples, std::span<const int64_t> indices) const;
  /// The loss of a batch of `n_examples`, as a pass through the stages.
  Loss loss_of(const Tree& batch, size_t n_examples, const Tree& params, const at::Generator& rng,
               bool is_training, StagedPass& pass) const;
  /// The parameters in compute_dtype.
  Tree computed_params() const;
  /// The generator for the examples first .. first + size - 1 of a step's batch, or of an
  /// evaluation.
  at::Generator batch_rng(Stream stream, size_t first, size_t size) const;

  /// See Trainer.
  ValueAndGrad value_and_grad(const std::function<at::Tensor(const Tree& params)>& function);
  at::Tensor apply_gradients(const Tree& grads);
  /// Those of the next update: one, or none, or those of the entries of `multi`.
  std::vector<double> learning_rates() const;

  /// Whether steps with a loss or gradients that are not finite are skipped. With a loss scale they
  /// always are.
  void skip_nonfinite(bool skips) { skips_nonfinite_ = skips && !state_.loss_scale; }
  bool skips_nonfinite() const { return skips_nonfinite_; }

  /// Passes on the metrics of an evaluation to the optimizer.
  void observe(const Metrics& metrics);
  /// Whether the optimizer's learning rate depends on them.
  bool needs_metrics() const;

  /// The script's tree as it was at the last `read_custom_state`; none without one. Reading it runs
  /// the script, which only the training thread may do.
  const Tree& custom_state() const { return custom_state_; }
  void read_custom_state();
  void set_custom_state(const Tree& saved);

  TrainState& state() { return state_; }
  const TrainState& state() const { return state_; }
  TrainedParams& params() { return *params_; }
  const TrainedParams& params() const { return *params_; }
  const std::shared_ptr<Deployer>& deployer() const { return deployer_; }
  at::Device device() const { return params_->device(); }
  const LossFn& loss_fn() const { return loss_fn_; }
  const Precision& precision() const { return precision_; }
  const std::vector<ShardingRule>& params_sharding_rules() const { return params_sharding_rules_; }
  const LayoutDecisions& layout_decisions() const { return decisions_; }
  Collate collate() const { return collate_; }
  void set_recompute(Recompute recompute) { recompute_ = recompute; }
  uint64_t seed() const { return seed_; }
  StepMeter& meter() { return *meter_; }

 private:
  void shard_params(const TracedForward& forward);
  Tree in_compute_dtype(const Tree& params) const;
  bool has_masters_on_host() const;
  class Accumulation;
  // The metrics of the micro-batches; the leaves keep the gradients.
  std::map<std::string, at::Tensor> accumulate(const Dataset& examples,
                                               std::span<const int64_t> indices, int64_t micro);
  Tree run_custom(const Dataset& examples, std::span<const int64_t> indices);
  // The gradients of the leaves; undefined where `value` does not depend on one.
  std::vector<at::Tensor> gradients_of(const at::Tensor& value, const at::Tensor& first_gradient,
                                       StagedPass& pass);
  // Returns the norm; counts in n_updates_ or n_left_out_. `loss` may be undefined; it is only
  // checked.
  at::Tensor update(std::vector<at::Tensor> grads, const at::Tensor& loss);

  std::shared_ptr<Deployer> deployer_;
  LossFn loss_fn_;
  Custom custom_;
  Precision precision_;
  Schedule lr_schedule_fn_;
  std::optional<int64_t> accumulate_grad_batches_;
  Collate collate_;
  std::vector<ShardingRule> params_sharding_rules_;
  std::function<void()> before_batch_;
  Recompute recompute_;
  bool offload_optimizer_;
  uint64_t seed_;

  TrainState state_;
  std::optional<TrainedParams> params_;
  LayoutDecisions decisions_;
  std::optional<OptimizerStep> optimizer_step_;
  std::unique_ptr<StepMeter> meter_;
  std::optional<Tree> given_opt_state_;  // until the parameters are laid out
  bool is_laid_out_ = false;
  bool needs_cast_ = false;  // whether any parameter is not in compute_dtype
  bool skips_nonfinite_ = false;
  bool gathers_ = false;  // whether the loss gathers what micro-batches have: see MicroBatches
  int64_t n_updates_ = 0;
  int64_t n_left_out_ = 0;  // updates skipped because of their gradients
  bool is_in_custom_ = false;
  std::function<Tree()> custom_state_fn_;
  std::function<void(const Tree& saved)> set_custom_state_fn_;
  Tree custom_state_;
};

}  // namespace redco::train
