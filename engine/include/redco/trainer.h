#pragma once

#include <redco/dataset.h>
#include <redco/deployer.h>
#include <redco/export.h>
#include <redco/optim.h>
#include <redco/predictor.h>
#include <redco/recompute.h>
#include <redco/schedule.h>
#include <redco/sharding_rules.h>
#include <redco/stop.h>
#include <redco/tree.h>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace redco {

class Trainer;

/// Bytes of one kind, on this device and in total.
struct HeldBytes {
  int64_t here = 0;
  int64_t whole = 0;
};

/// The memory that a Trainer holds.
struct TrainerMemory {
  HeldBytes params, grads, opt_state;
};

/// A readable report on the largest of `trainers`; empty without any.
REDCO_API std::string memory_report(const std::vector<TrainerMemory>& trainers);

/// The result of a loss_fn: the mean loss of a batch, one number, and the weight of that mean, with
/// which micro-batches are combined: sum(w_i L_i) / sum(w_i). For a mean over tokens it is their
/// number. An undefined weight means the number of examples. A loss with weight 0 must still be
/// finite. `metrics` become metrics of the training step: those of one number are combined by the
/// same weights, those of a sum and a count, [2], are added up and divided (0 if the count is 0).
/// Evaluations ignore them.
struct Loss {
  at::Tensor loss;
  at::Tensor weight = {};
  std::map<std::string, at::Tensor> metrics = {};
};

/// The factor applied to a float16 loss before backward, so that small gradients do not underflow;
/// the gradients are divided by it. A step with non-finite gradients is skipped and halves the
/// scale; a long run of finite ones doubles it.
struct LossScale {
  double scale = 65536;
  int64_t good_steps = 0;  ///< since the last change of the scale
};

struct TrainState {
  Tree params;  ///< the masters
  Tree opt_state;
  int64_t step = 0;  ///< completed optimizer steps, without skipped ones
  /// Only with compute_dtype = float16. Like opt_state, it is needed to resume a run.
  std::optional<LossScale> loss_scale = std::nullopt;
};

/// Computes the loss of a batch. `params` are the parameters of `state` in compute_dtype, as are
/// the floating-point tensors of `batch`. `rng` is a CounterGenerator that depends only on the seed
/// and the step and knows the position of the micro-batch: an example gets the same numbers as in
/// the whole batch. Operators without an explicit generator draw from it too.
using LossFn = std::function<Loss(at::Generator rng, const TrainState& state, const Tree& params,
                                  const Tree& batch, bool is_training)>;

/// A custom training step on a whole global batch. It calls `trainer.apply_gradients` and returns a
/// dictionary of metrics: numbers and tensors of one element.
using TrainStepFn = std::function<Tree(at::Generator rng, Trainer& trainer, const Tree& batch)>;

struct EvalResults {
  std::map<std::string, double> metrics;
  /// A list with the prediction for each example, written to `outputs_NAME.json`. none: no file.
  Tree outputs = {};
};

/// Computes metrics of a set of examples: the evaluation set, or for the sanity check its first
/// batch.
using EvalMetricsFn = std::function<EvalResults(const Dataset& eval_examples)>;

struct TrainerOptions {
  std::shared_ptr<Deployer> deployer;
  /// The initial parameters. They are not modified: trained parameters are copied, unless the tree
  /// was moved in and nothing else holds the tensor; others are shared. A tensor at two paths of
  /// the tree is one parameter.
  Tree params = {};
  LossFn loss_fn;
  std::shared_ptr<Optimizer> optimizer;
  std::optional<Tree> opt_state = std::nullopt;  ///< none: the optimizer's first
  int64_t step = 0;
  /// The dtype to which floating-point parameters and batch tensors are cast for the loss; master
  /// parameters, gradients and optimizer state keep theirs. float32, float64, bfloat16, or float16,
  /// for which the loss is scaled.
  at::ScalarType compute_dtype = at::kFloat;
  /// The loss is computed under Autocast with this dtype, float16 or bfloat16; requires
  /// compute_dtype = float32. With float16 the loss is scaled. none: the caller's autocast applies.
  std::optional<at::ScalarType> autocast_dtype = std::nullopt;
  /// The loss is computed with Float8Products; requires compute_dtype = bfloat16.
  bool float8_products = false;
  std::optional<LossScale> loss_scale = std::nullopt;  ///< none: the first one; float16 alone
  /// The `lr` in the log if the optimizer does not report one; it changes no step.
  Schedule lr_schedule_fn = {};
  /// Micro-batches per optimizer step. none: 1, or the number derived from global_batch_size.
  std::optional<int64_t> accumulate_grad_batches = std::nullopt;
  TrainStepFn train_step_fn = {};
  Collate collate = Collate::global;
  /// The info.json of the checkpoint from which the run resumes. Its `step` and `loss_scale` take
  /// precedence over those above. none: a new run.
  Tree last_ckpt_info = {};
  /// Reads a tree of the script, which is saved in checkpoints and which `train_step_fn` and hooks
  /// may change. Called on the training thread. none: there is no such tree.
  std::function<Tree()> custom_state = {};
  /// Sets that tree when a run goes back to a checkpoint (OnNonfinite::restore).
  std::function<void(const Tree& saved)> set_custom_state = {};
  /// Called before each micro-batch of training, and after the steps of a plan: what earlier ones
  /// left should be freed then, so that each step, and the plan, needs the same memory.
  std::function<void()> before_batch = {};
  /// The results that marked blocks of the loss keep for backward.
  Recompute recompute = Recompute::none;
  /// Keeps the optimizer's state in the memory of the host, which a GPU reads and writes over its
  /// link, and with ZeRO below 3 also parameters that are cast to compute_dtype: 8 or 12 bytes less
  /// of the GPU's memory for a float32 parameter of AdamW. Numbers stay the same. A CPU has them
  /// there in any case.
  bool offload_optimizer = false;
  /// The placements of parameters on the model shards. They take precedence over those chosen by
  /// tracing the first loss.
  std::vector<ShardingRule> params_sharding_rules = {};
};

/// Ends a `fit` when evaluations stop improving.
struct EarlyStopping {
  std::string metric = "loss";  ///< a metric of the evaluation
  bool maximize = false;
  int64_t patience = 3;  ///< consecutive evaluations without an improvement
  double min_delta = 0;  ///< smaller changes do not count as improvements
};

/// How `fit` handles a loss, or gradients, that are not finite. The batch is written to the work
/// folder as nonfinite_step_N.safetensors.
enum class OnNonfinite {
  /// Throws Error. Detected while the next step runs, so it does not synchronise with the device.
  stop,
  /// Skips the update; the batch counts as done. Ten in a row throw Error. This and `restore` check
  /// every step before its update, which on a GPU waits for the device.
  skip,
  /// Returns to the last checkpoint of this run and continues from there without this batch. Throws
  /// Error the third time without a newer checkpoint, and if there is no checkpoint yet.
  restore,
};

/// How `fit` handles a checkpoint that cannot be written: it ends, or logs the failure.
enum class OnSaveError { stop, go_on };

/// The argument of a hook of `fit`. It is valid until the hook returns.
struct FitEvent {
  int64_t step = 0;  ///< completed optimizer steps
  int64_t epoch_idx = 0;
  std::vector<std::string> ckpt_names = {};  ///< on_save: the checkpoints about to be written
  /// on_step: the metrics of the step, for which the call waits; otherwise those of the last
  /// evaluation.
  std::function<Metrics()> metrics;
  /// Ends `fit` after this step, evaluation or epoch, with the checkpoint `last` if it is asked
  /// for. Must be called on all processes.
  std::function<void(const std::string& reason)> stop;
};

/// Called on all processes. May change everything that a script can change between two steps.
using Hook = std::function<void(const FitEvent& event)>;

/// The range of steps to profile, both ends included.
struct ProfileOptions {
  int64_t first = 0;
  int64_t last = 0;
};

struct FitOptions {
  /// A dataset for all epochs, or one for each.
  std::variant<Dataset, std::function<Dataset(int64_t epoch_idx)>> train_examples = {};
  int64_t per_device_batch_size = 0;
  int64_t n_epochs = 1;
  bool shuffle = true;  ///< visits the examples of an epoch in a random order, not in theirs
  std::optional<int64_t> global_batch_size = std::nullopt;  ///< accumulation is derived from it
  std::optional<int64_t> max_steps = std::nullopt;          ///< stops when step() reaches it
  std::optional<Dataset> eval_examples = std::nullopt;
  std::optional<int64_t> eval_per_device_batch_size = std::nullopt;  ///< none: that of training
  bool eval_loss = true;
  EvalMetricsFn eval_metrics = {};
  /// Evaluates one batch before training, so that errors in the evaluation show early.
  bool eval_sanity_check = true;
  std::optional<int64_t> eval_every_k_steps =
      std::nullopt;  ///< in addition to that after each epoch

  // Checkpoints: workdir/ckpts/NAME, and workdir/ckpts/last_ckpt.txt with the name of the newest.
  std::optional<int64_t> save_ckpt_every_k_epochs = std::nullopt;  ///< epoch_I
  std::optional<int64_t> save_ckpt_every_k_steps = std::nullopt;   ///< step_N
  bool save_last_ckpt = false;  ///< last: after each epoch, and at the end
  std::vector<std::string> save_argmin_ckpt_by_metrics = {};  ///< min_METRIC
  std::vector<std::string> save_argmax_ckpt_by_metrics = {};  ///< max_METRIC
  bool save_opt_states = true;
  /// Whether checkpoints contain the parameters that are not trained and that their files have,
  /// too, not only their names and checksums.
  bool save_frozen = false;
  std::optional<at::ScalarType> save_float_dtype = std::nullopt;
  /// The number of checkpoints step_N, and of epoch_I, to keep. none: all.
  std::optional<int64_t> keep_last_k_ckpts = std::nullopt;
  /// Whether training continues while a checkpoint is written from copies in memory.
  bool save_in_background = true;
  OnSaveError on_save_error = OnSaveError::stop;

  // Hooks. Checkpoints written at the same step contain the changes that hooks make.
  Hook on_step = {};   ///< after each optimizer step
  Hook on_eval = {};   ///< after each evaluation
  Hook on_epoch = {};  ///< at the end of each epoch, after its evaluation
  Hook on_save = {};   ///< before checkpoints are written

  std::optional<EarlyStopping> early_stopping = std::nullopt;
  OnNonfinite on_nonfinite = OnNonfinite::stop;
  std::optional<double> max_seconds = std::nullopt;  ///< ends after this time as with max_steps
  std::shared_ptr<StopRequest> stop = {};            ///< a request_stop for this `fit` only
  /// Writes a trace of these steps on process 0 to `profile_stepFIRST-LAST.json` in the work
  /// folder, for Perfetto or chrome://tracing.
  std::optional<ProfileOptions> profile = std::nullopt;
};

struct SaveCkptOptions {
  bool save_opt_state = true;
  bool save_frozen = false;  ///< see FitOptions
  std::optional<at::ScalarType> float_dtype = std::nullopt;
};

struct SetTrainStateOptions {
  Tree params = {};
  std::optional<Tree> opt_state = std::nullopt;  ///< none: the optimizer's first
  int64_t step = 0;
  std::optional<LossScale> loss_scale = std::nullopt;  ///< none: the first one; float16 alone
  std::shared_ptr<Optimizer> optimizer = nullptr;      ///< null: the current one
};

struct ValueAndGrad {
  at::Tensor value;  ///< 0-dim, without a graph
  Tree grads;        ///< like the params tree; undefined tensors where there is no gradient
};

/// Trains a tree of parameters. Every call runs on the calling thread, backward included.
class REDCO_API Trainer {
 public:
  explicit Trainer(TrainerOptions options);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Trains for some epochs, each followed by an evaluation and checkpoints. The last, smaller
  /// batch of an epoch is used. With `last_ckpt_info` the first call resumes at the step it holds.
  /// Throws Error for an empty dataset, for a non-finite loss as set by `on_nonfinite`, and if no
  /// scale makes float16 gradients finite; Stopped after `request_stop`.
  void fit(const FitOptions& options);

  /// Trains for one epoch, in a new order.
  void train(const Dataset& examples, int64_t per_device_batch_size,
             const std::string& desc = "Training");

  /// Performs one optimizer step on these examples and returns its metrics, without logging them.
  /// Examples beyond per_device_batch_size become further micro-batches; none: one micro-batch.
  /// Throws Error for a loss or gradients that are not finite.
  Metrics train_step(const Dataset& examples,
                     std::optional<int64_t> per_device_batch_size = std::nullopt);

  /// The weighted mean of the loss over all examples, in order, with is_training = false.
  double eval_loss(const Dataset& examples, int64_t per_device_batch_size,
                   const std::string& desc = "Evaluating");

  /// Writes workdir/ckpts/`ckpt_name`, from which a run can resume, and waits for it. `epoch_idx`
  /// is a completed epoch; none: the current position of `fit`. Throws Error without a work folder.
  void save_ckpt(const std::string& ckpt_name, std::optional<int64_t> epoch_idx = std::nullopt,
                 const SaveCkptOptions& options = {});

  /// Lays the parameters out over the processes, from the way the loss of the first `examples` uses
  /// them. `fit`, `train` and `eval_loss` do so themselves; with one process it does nothing.
  void setup_running_step(const Dataset& examples, int64_t per_device_batch_size);

  /// Starts over from `params`, as in the constructor: one set of weights can start several runs.
  void set_train_state(SetTrainStateOptions options);

  /// See TrainerOptions; applies to later steps.
  void set_recompute(Recompute recompute);

  const TrainState& state() const;
  int64_t step() const { return state().step; }
  /// The memory held between two steps, and that of the gradients of each step.
  TrainerMemory memory() const;
  const std::shared_ptr<Deployer>& deployer() const;
  const std::vector<ShardingRule>& params_sharding_rules() const;
  /// How the parameters are laid out over the model shards, and why; empty before that is known.
  const std::vector<ShardingDecision>& sharding_decisions() const;
  /// The stages of a pipeline; none before they are known, and with one stage.
  const StageDecisions& stage_decisions() const;
  at::ScalarType compute_dtype() const;
  std::optional<at::ScalarType> autocast_dtype() const;
  /// A Predictor with the Trainer's dtypes.
  Predictor get_default_predictor(PredFn pred_fn, OutputFn output_fn = {}) const;

  // For a train_step_fn:

  const LossFn& loss_fn() const;
  /// The learning rate of the next update, if known; with `multi`, that of its first entry.
  std::optional<double> learning_rate() const;
  /// Returns `function` of the parameters in compute_dtype, and its gradients with respect to the
  /// master parameters: undefined for parameters that are not trained or not used. Gradients of a
  /// float16 loss are unscaled, and may not be finite. With ZeRO 2 and 3 they are split over the
  /// processes, as in the Trainer's own steps.
  ValueAndGrad value_and_grad(const std::function<at::Tensor(const Tree& params)>& function);
  /// Updates the parameters. Inside a train_step_fn all calls together are one optimizer step:
  /// they see the same `step()`, which then counts one. Gradients are found by their dotted
  /// paths; parameters without a gradient, or with an undefined one, stay unchanged. Returns the
  /// global norm of the gradients before clipping. With compute_dtype = float16 a non-finite norm
  /// skips the step: only the loss scale changes.
  at::Tensor apply_gradients(const Tree& grads);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace redco
