#pragma once

#include <redco/autocast.h>
#include <redco/checkpoint.h>
#include <redco/dataset.h>
#include <redco/deployer.h>
#include <redco/export.h>
#include <redco/optim.h>
#include <redco/predictor.h>
#include <redco/sharding_report.h>
#include <redco/sharding_rules.h>
#include <redco/stop.h>
#include <redco/tree.h>

#include <ATen/core/Generator.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace redco {

class GradientReducer;
class Zero3Store;
class PendingMetrics;
class StepMeter;
struct RunState;
class Trainer;

/// What a loss_fn returns: the mean loss of a batch, one number, and the weight of that mean, by
/// which micro-batches are combined: sum(w_i L_i) / sum(w_i). For a mean over tokens that is their
/// number. An undefined weight stands for the number of examples. Where the weight is 0 the loss
/// must still be finite.
struct Loss {
  at::Tensor loss;
  at::Tensor weight = {};
};

/// What a float16 loss is multiplied by before backward, so that small gradients do not vanish: the
/// gradients are divided by it. A step whose gradients are not all finite is left out, and halves
/// the scale; many good ones double it.
struct LossScale {
  double scale = 65536;
  int64_t good_steps = 0;  ///< since it last changed
};

struct TrainState {
  Tree params;  ///< the masters
  Tree opt_state;
  int64_t step = 0;  ///< optimizer steps done; one that is left out is none
  /// With compute_dtype = float16 alone. Part of what a run goes on from, as opt_state is.
  std::optional<LossScale> loss_scale = std::nullopt;
};

/// `params` are the state's, and the batch's floating-point tensors, in compute_dtype. `rng` is a
/// CounterGenerator that depends on the seed and the step alone and knows the micro-batch's place:
/// an example gets the numbers it has in the whole batch. Operators that are given no generator
/// draw from it too.
using LossFn = std::function<Loss(at::Generator rng, const TrainState& state, const Tree& params,
                                  const Tree& batch, bool is_training)>;

/// One step of one's own on a whole global batch; it calls `trainer.apply_gradients` and returns a
/// dictionary of metrics: numbers and tensors of one element.
using TrainStepFn = std::function<Tree(at::Generator rng, Trainer& trainer, const Tree& batch)>;

struct EvalResults {
  std::map<std::string, double> metrics;
  /// For `outputs_NAME.json`: a list of what was predicted of each example. none: no such file.
  Tree outputs = {};
};

/// Metrics of a set of examples: the evaluation set, or in the sanity check its first batch.
using EvalMetricsFn = std::function<EvalResults(const Dataset& eval_examples)>;

struct TrainerOptions {
  std::shared_ptr<Deployer> deployer;
  /// Where training starts. They stay as they are: what is trained is copied, unless the tree was
  /// moved in and nobody else holds the tensor; what is not trained is shared. A tensor that stands
  /// in two places is one parameter.
  Tree params = {};
  LossFn loss_fn;
  std::shared_ptr<Optimizer> optimizer;
  std::optional<Tree> opt_state = std::nullopt;  ///< none: the optimizer's first
  int64_t step = 0;
  /// The type that floating-point parameters and tensors of a batch are cast to for the loss; the
  /// masters, gradients and optimizer state keep theirs. float32, float64, bfloat16, or float16,
  /// whose loss is scaled.
  at::ScalarType compute_dtype = at::kFloat;
  /// The loss is computed under Autocast of this type, float16 or bfloat16; for compute_dtype =
  /// float32. With float16 the loss is scaled. none: autocast is as it is for the caller.
  std::optional<at::ScalarType> autocast_dtype = std::nullopt;
  std::optional<LossScale> loss_scale = std::nullopt;  ///< none: the first one; float16 alone
  /// Only what the log calls `lr` where the optimizer does not say; it changes no step.
  Schedule lr_schedule_fn = {};
  /// Micro-batches of an optimizer step. none: 1, or what a global_batch_size asks for.
  std::optional<int64_t> accumulate_grad_batches = std::nullopt;
  TrainStepFn train_step_fn = {};
  Collate collate = Collate::global;
  /// What a checkpoint's info.json says: the run goes on from there. Its `step` and `loss_scale`
  /// come before those above. none: it begins.
  Tree last_ckpt_info = {};
  /// How parameters lie over the model shards, before what watching the first loss decides.
  std::vector<ShardingRule> params_sharding_rules = {};
};

/// Ends a `fit` when evaluations no longer get better.
struct EarlyStopping {
  std::string metric = "loss";  ///< of the evaluation
  bool maximize = false;
  int64_t patience = 3;  ///< evaluations in a row without an improvement
  double min_delta = 0;  ///< a smaller change is none
};

/// What `fit` does about a loss, or gradients, that are not finite. The batch is written to the
/// work folder, as nonfinite_step_N.safetensors.
enum class OnNonfinite {
  /// Throws Error. Found when the next step is under way: nothing waits for it.
  stop,
  /// The parameters stay as they are, and the batch counts as done. Ten in a row throw Error. This
  /// and `restore` look at every step before its update, and on a GPU wait for it.
  skip,
  /// Back to the last checkpoint of this run; from there it goes on without this batch. The third
  /// time without a newer checkpoint, and one before the first, throw Error.
  restore,
};

/// What a checkpoint that cannot be written does: ends the `fit`, or is told in the log.
enum class OnSaveError { stop, go_on };

/// Which steps to watch: the first and the last of them.
struct ProfileOptions {
  int64_t first = 0;
  int64_t last = 0;
};

struct FitOptions {
  /// A set for all epochs, or one for each.
  std::variant<Dataset, std::function<Dataset(int64_t epoch_idx)>> train_examples = {};
  int64_t per_device_batch_size = 0;
  int64_t n_epochs = 1;
  std::optional<int64_t> global_batch_size = std::nullopt;  ///< accumulation is derived from it
  std::optional<int64_t> max_steps = std::nullopt;  ///< stops when step() is there, if not before
  std::optional<Dataset> eval_examples = std::nullopt;
  std::optional<int64_t> eval_per_device_batch_size = std::nullopt;  ///< none: the training one
  bool eval_loss = true;
  EvalMetricsFn eval_metrics = {};
  /// One batch through the evaluation before training, so that its faults show at once.
  bool eval_sanity_check = true;
  std::optional<int64_t> eval_every_k_steps = std::nullopt;  ///< beside the one after each epoch

  // Checkpoints: workdir/ckpts/NAME, and workdir/ckpts/last_ckpt.txt with the name of the newest.
  std::optional<int64_t> save_ckpt_every_k_epochs = std::nullopt;  ///< epoch_I
  std::optional<int64_t> save_ckpt_every_k_steps = std::nullopt;   ///< step_N
  bool save_last_ckpt = false;  ///< last: after each epoch, and at the end
  std::vector<std::string> save_argmin_ckpt_by_metrics = {};  ///< min_METRIC
  std::vector<std::string> save_argmax_ckpt_by_metrics = {};  ///< max_METRIC
  bool save_opt_states = true;
  std::optional<at::ScalarType> save_float_dtype = std::nullopt;
  /// So many of step_N, and of epoch_I, are kept. none: all.
  std::optional<int64_t> keep_last_k_ckpts = std::nullopt;
  /// Whether training goes on while a checkpoint is written, from copies in memory.
  bool save_in_background = true;
  OnSaveError on_save_error = OnSaveError::stop;

  std::optional<EarlyStopping> early_stopping = std::nullopt;
  OnNonfinite on_nonfinite = OnNonfinite::stop;
  std::optional<double> max_seconds = std::nullopt;  ///< ends then as with max_steps
  std::shared_ptr<StopRequest> stop = {};            ///< ends this run alone, as request_stop does
  /// Writes a trace of these steps of process 0 to `profile_stepFIRST-LAST.json` in the work
  /// folder, for Perfetto or chrome://tracing.
  std::optional<ProfileOptions> profile = std::nullopt;
};

struct SaveCkptOptions {
  bool save_opt_state = true;
  std::optional<at::ScalarType> float_dtype = std::nullopt;
};

struct SetTrainStateOptions {
  Tree params = {};
  std::optional<Tree> opt_state = std::nullopt;  ///< none: the optimizer's first
  int64_t step = 0;
  std::optional<LossScale> loss_scale = std::nullopt;  ///< none: the first one; float16 alone
  std::shared_ptr<Optimizer> optimizer = nullptr;      ///< null: as before
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

  /// Epochs of training, each followed by the evaluation and its checkpoints. The last, smaller
  /// batch of an epoch is used. With `last_ckpt_info` the first call goes on at the step it names.
  /// Throws Error for an empty set, and for a loss that is not finite as `on_nonfinite` says, or
  /// when no scale makes float16 gradients finite; Stopped after `request_stop`.
  void fit(const FitOptions& options);

  /// One epoch, in an order of its own.
  void train(const Dataset& examples, int64_t per_device_batch_size,
             const std::string& desc = "Training");

  /// The weighted mean of the loss over all examples, in order, with is_training = false.
  double eval_loss(const Dataset& examples, int64_t per_device_batch_size,
                   const std::string& desc = "Evaluating");

  /// Writes workdir/ckpts/`ckpt_name`, from which a run can go on, and waits for it. `epoch_idx`
  /// is an epoch that is done; none: the place where `fit` is. Throws Error without a work folder.
  void save_ckpt(const std::string& ckpt_name, std::optional<int64_t> epoch_idx = std::nullopt,
                 const SaveCkptOptions& options = {});

  /// Lays the parameters out over the processes, by what the loss of the first `examples` does with
  /// them. `fit`, `train` and `eval_loss` do so by themselves; one process has nothing to lay out.
  void setup_running_step(const Dataset& examples, int64_t per_device_batch_size);

  /// Starts anew, from `params` as in the constructor: one set of weights can start several runs.
  void set_train_state(SetTrainStateOptions options);

  const TrainState& state() const { return state_; }
  int64_t step() const { return state_.step; }
  /// What is held between two steps, and the gradients that each step makes.
  TrainerMemory memory() const;
  const std::shared_ptr<Deployer>& deployer() const { return deployer_; }
  const std::vector<ShardingRule>& params_sharding_rules() const { return params_sharding_rules_; }
  at::ScalarType compute_dtype() const { return compute_dtype_; }
  std::optional<at::ScalarType> autocast_dtype() const { return autocast_dtype_; }
  /// It computes in the Trainer's types.
  Predictor get_default_predictor(PredFn pred_fn, OutputFn output_fn = {}) const;

  // For a train_step_fn:

  const LossFn& loss_fn() const { return loss_fn_; }
  /// The learning rate of the next update, where it is known.
  std::optional<double> learning_rate() const;
  /// `function` of the parameters in compute_dtype, and its gradients by the masters: undefined for
  /// what is not trained, and for what it does not depend on. Of a float16 loss they are divided by
  /// its scale again, and may not be finite.
  ValueAndGrad value_and_grad(const std::function<at::Tensor(const Tree& params)>& function) const;
  /// One optimizer step; `step()` grows by one. Gradients are found by their dotted paths;
  /// parameters without one, or with an undefined one, stay as they are. Returns their global norm
  /// before any clipping. With compute_dtype = float16 a norm that is not finite leaves the step
  /// out: nothing but the loss scale changes.
  at::Tensor apply_gradients(const Tree& grads);

 private:
  struct Batching {
    int64_t micro, accumulate;
  };

  void adopt(Tree params, std::optional<Tree> opt_state, int64_t step,
             std::optional<LossScale> loss_scale);
  void lay_out(const std::function<void(const Tree& params)>& forward);
  void prepare_optimizer(std::optional<Tree> opt_state);
  void refresh_params();
  void rejoin();
  Batching batching(int64_t per_device_batch_size, std::optional<int64_t> global_batch_size) const;
  std::string training_desc(const std::string& desc, const Batching& batching) const;
  class Fit;
  PendingMetrics run_step(const Dataset& examples, std::span<const int64_t> indices, int64_t micro);
  at::Tensor accumulate(const Dataset& examples, std::span<const int64_t> indices, int64_t micro);
  Tree batch_of(const Dataset& examples, std::span<const int64_t> indices) const;
  Loss loss_of(const Dataset& examples, std::span<const int64_t> indices, const Tree& params,
               const at::Generator& rng, bool is_training) const;
  // For the examples first .. first + size - 1 of the step's batch, or of an evaluation.
  at::Generator batch_rng(uint64_t stream, size_t first, size_t size) const;
  void clear_gradients();
  void add_up(std::vector<at::Tensor>& sums, bool is_last);
  // `loss` may be undefined; it is only looked at.
  at::Tensor update(std::vector<at::Tensor> grads, const at::Tensor& loss);
  std::map<std::string, double> evaluate(const FitOptions& options, const std::string& desc,
                                         const std::string& name);
  void check_evaluation(const FitOptions& options);
  Checkpoint checkpoint(bool with_opt_state, bool is_epoch_done) const;
  // Takes over values for the parameters and states there are, and the rest of `last_ckpt_info`.
  void restore(const Checkpoint& checkpoint);
  void resume_from(const Tree& last_ckpt_info);
  Tree in_compute_dtype(const Tree& params) const;
  Autocast autocast() const;
  // float16 has a range that small gradients leave.
  bool is_scaled() const;

  std::shared_ptr<Deployer> deployer_;
  LossFn loss_fn_;
  std::shared_ptr<Optimizer> optimizer_;
  at::ScalarType compute_dtype_;
  std::optional<at::ScalarType> autocast_dtype_;
  Schedule lr_schedule_fn_;
  std::optional<int64_t> accumulate_grad_batches_;
  TrainStepFn train_step_fn_;
  Collate collate_;

  std::vector<ShardingRule> params_sharding_rules_;
  bool is_laid_out_ = false;
  std::optional<Tree> given_opt_state_;  // until the parameters are laid out

  TrainState state_;
  std::vector<std::string> names_;   // of the trained parameters
  std::vector<at::Tensor> leaves_;   // the trained parameters
  std::vector<at::Tensor> updates_;  // what the optimizer sees of them: all, or this rank's part
  std::unique_ptr<GradientReducer> reducer_;  // null: one process
  std::shared_ptr<Zero3Store> store_;         // of what dp ranks share; null: nothing
  std::vector<size_t> updated_;               // those of them that `update_` holds
  Update update_;
  at::Device device_ = at::kCPU;
  std::unique_ptr<StepMeter> meter_;
  bool needs_cast_ = false;  // whether any parameter is not in compute_dtype
  int64_t n_left_out_ = 0;   // steps, because of their gradients
  bool leaves_out_nonfinite_ = false;
  uint64_t seed_;
  std::unique_ptr<RunState> run_;
  int64_t reconnects_ = 0;    // of the mesh
  bool is_resuming_ = false;  // the next pass over examples, where `run_` says
};

}  // namespace redco
