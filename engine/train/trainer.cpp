// The Trainer: a training step, the position of the run, and what surrounds them.

#include <redco/trainer.h>

#include "../log/resumed_metrics.h"
#include "../optim/log_actions.h"
#include "batches/batches.h"
#include "batches/lookahead.h"
#include "fit/evaluation.h"
#include "fit/fit.h"
#include "measures/memory.h"
#include "random.h"
#include "run_checkpoint.h"
#include "run_state.h"
#include "step/train_step.h"

#include <redco/error.h>
#include <redco/quantized.h>

#include <cmath>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace redco {

using train::Fit;
using train::RunState;
using train::TrainStep;

namespace {

std::string with_thousands(int64_t number) {
  std::string digits = std::to_string(number);
  for (int64_t i = int64_t(digits.size()) - 3; i > 0; i -= 3) digits.insert(size_t(i), ",");
  return digits;
}

void log_size(const Tree& params, Deployer& deployer) {
  const int64_t all = count_numbers(params);
  const int64_t trained =
      count_numbers(params, [](const at::Tensor& tensor) { return tensor.requires_grad(); });
  deployer.log_info(
      with_thousands(all) + (trained < all ? ", of which trained: " + with_thousands(trained) : ""),
      "Parameters");
}

// Removes from the log what an earlier process did after step `step`. The Trainers of a Deployer
// share its log, so only the first one that resumes does it.
void remove_later_metrics(const std::shared_ptr<Deployer>& deployer, int64_t step) {
  static std::mutex mutex;
  static std::weak_ptr<Deployer> last;
  std::scoped_lock lock(mutex);
  if (!deployer->run_log().writes_files() || last.lock() == deployer) return;
  last = deployer;
  io::remove_later_metrics(deployer->workdir() + "/metrics.jsonl", step);
}

// A resumed run keeps its seed.
uint64_t seed_of(const Tree& last_ckpt_info, uint64_t otherwise) {
  if (last_ckpt_info.is_none()) return otherwise;
  const auto& info = last_ckpt_info.as<Tree::Dict>();
  auto seed = info.find("trainer_seed");
  return seed == info.end() ? otherwise : uint64_t(seed->second.as<int64_t>());
}

}  // namespace

struct Trainer::Impl {
  Impl(const TrainerOptions& options, TrainStep::Custom custom)
      : run(train::run_state_of(options.last_ckpt_info)),
        is_resuming(!options.last_ckpt_info.is_none()),
        step(options, std::move(custom),
             seed_of(options.last_ckpt_info, options.deployer->new_trainer_seed())) {}

  // Whether the pass that starts now resumes; if so, later steps are removed from the log.
  bool resumes() {
    if (!std::exchange(is_resuming, false)) return false;
    remove_later_metrics(step.deployer(), step.state().step);
    return true;
  }

  RunState run;
  bool is_resuming;  // whether the next pass starts at the position in `run`
  TrainStep step;
};

Trainer::Trainer(TrainerOptions options) {
  require(options.deployer != nullptr, "Trainer: deployer is missing");
  require(bool(options.loss_fn), "Trainer: loss_fn is missing");
  require(options.optimizer != nullptr, "Trainer: optimizer is missing");
  TrainStep::Custom custom;
  if (options.train_step_fn)
    custom = [this, step_fn = options.train_step_fn](at::Generator rng, const Tree& batch) {
      return step_fn(std::move(rng), *this, batch);
    };
  impl_ = std::make_unique<Impl>(options, std::move(custom));
  set_train_state({.params = std::move(options.params),
                   .opt_state = std::move(options.opt_state),
                   .step = train::step_of(options.last_ckpt_info, options.step),
                   .loss_scale = train::loss_scale_of(options.last_ckpt_info, options.loss_scale),
                   .optimizer = options.optimizer});
  log_size(state().params, *deployer());
}

Trainer::~Trainer() = default;

void Trainer::set_train_state(SetTrainStateOptions options) {
  impl_->step.set_state(std::move(options));
}

void Trainer::set_recompute(Recompute recompute) { impl_->step.set_recompute(recompute); }

void Trainer::setup_running_step(const Dataset& examples, int64_t per_device_batch_size) {
  impl_->step.lay_out(examples, per_device_batch_size);
}

void Trainer::fit(const FitOptions& options) {
  if (!impl_->resumes()) impl_->run = {};
  Fit(impl_->step, impl_->run, options).run();
}

void Trainer::train(const Dataset& examples, int64_t per_device_batch_size,
                    const std::string& desc) {
  FitOptions options;
  options.per_device_batch_size = per_device_batch_size;
  RunState& run = impl_->run;
  if (!impl_->resumes()) run.n_examples = 0;
  Fit(impl_->step, run, options).train_epoch(examples, desc);
  ++run.epoch_idx;
  run.n_examples = 0;
}

Metrics Trainer::train_step(const Dataset& examples, std::optional<int64_t> per_device_batch_size) {
  TrainStep& step = impl_->step;
  train::check_examples("train_step", examples);
  train::log_action("trains on", examples.size, "examples");
  int64_t n_copies = deployer()->mesh()->size(Mesh::batch);
  int64_t size = per_device_batch_size.value_or((examples.size + n_copies - 1) / n_copies);
  train::Batching batching = step.batching(size, std::nullopt);
  step.lay_out(examples, size);
  std::vector<int64_t> order = train::index_range(0, examples.size);
  uint64_t seed = train::derive_seed(
      step.seed(), {uint64_t(train::collate_stream), uint64_t(step.state().step)});
  Dataset ahead = train::with_lookahead(
      examples,
      {.order = order,
       .batch_size = batching.micro,
       .batches_per_step = (examples.size + batching.micro - 1) / batching.micro,
       .seed = seed,
       .collate = step.collate()},
      deployer()->mesh());
  train::PendingMetrics pending = step.run(ahead, order, batching.micro);
  Metrics metrics = pending.read();
  for (const char* name : {"loss", "grad_norm"}) {
    auto found = metrics.find(name);
    require(found == metrics.end() || pending.is_left_out() || std::isfinite(found->second),
            "training: the ", name, " of step ", pending.step(), " is ",
            found == metrics.end() ? 0 : found->second,
            ". The parameters have been updated with its gradients");
  }
  return metrics;
}

double Trainer::eval_loss(const Dataset& examples, int64_t per_device_batch_size,
                          const std::string& desc) {
  return train::eval_loss(impl_->step, examples, per_device_batch_size, desc);
}

void Trainer::save_ckpt(const std::string& ckpt_name, std::optional<int64_t> epoch_idx,
                        const SaveCkptOptions& options) {
  bool is_name =
      !ckpt_name.empty() && ckpt_name[0] != '.' && ckpt_name.find('/') == std::string::npos;
  require(is_name, "save_ckpt: ckpt_name = \"", ckpt_name, "\" is not a name of a folder");
  require(impl_->step.is_laid_out(),
          "save_ckpt: the parameters are not laid out over the processes yet: train, "
          "or call setup_running_step first");
  impl_->step.read_custom_state();
  Checkpoint written = train::checkpoint_of(impl_->step, impl_->run,
                                            {.opt_state = options.save_opt_state,
                                             .frozen = options.save_frozen,
                                             .is_epoch_done = epoch_idx.has_value()});
  if (epoch_idx) written.info["epoch_idx"] = *epoch_idx;
  SaveCheckpointOptions how;
  how.float_dtype = options.float_dtype;
  std::string ckpts = deployer()->ckpts_dir();
  how.pointer = ckpts + "/last_ckpt.txt";
  deployer()->save_ckpt(ckpts + "/" + ckpt_name, std::move(written), how);
}

Predictor Trainer::get_default_predictor(PredFn pred_fn, OutputFn output_fn) const {
  return Predictor({deployer(), std::move(pred_fn), std::move(output_fn), impl_->step.collate(),
                    compute_dtype(), autocast_dtype(), params_sharding_rules()});
}

const TrainState& Trainer::state() const { return impl_->step.state(); }

TrainerMemory Trainer::memory() const { return train::trainer_memory(impl_->step); }

const std::shared_ptr<Deployer>& Trainer::deployer() const { return impl_->step.deployer(); }

const std::vector<ShardingRule>& Trainer::params_sharding_rules() const {
  return impl_->step.params_sharding_rules();
}

const std::vector<ShardingDecision>& Trainer::sharding_decisions() const {
  return impl_->step.layout_decisions().over_model;
}

const StageDecisions& Trainer::stage_decisions() const {
  return impl_->step.layout_decisions().over_stages;
}

at::ScalarType Trainer::compute_dtype() const { return impl_->step.precision().compute_dtype; }

std::optional<at::ScalarType> Trainer::autocast_dtype() const {
  return impl_->step.precision().autocast_dtype;
}

const LossFn& Trainer::loss_fn() const { return impl_->step.loss_fn(); }

std::optional<double> Trainer::learning_rate() const {
  std::vector<double> rates = impl_->step.learning_rates();
  return rates.empty() ? std::nullopt : std::optional(rates.front());
}

ValueAndGrad Trainer::value_and_grad(
    const std::function<at::Tensor(const Tree& params)>& function) {
  return impl_->step.value_and_grad(function);
}

at::Tensor Trainer::apply_gradients(const Tree& grads) {
  return impl_->step.apply_gradients(grads);
}

}  // namespace redco
