#include <redco/trainer.h>

#include "batches.h"
#include "gradient_reducer.h"
#include "loss_scaler.h"
#include "pending_metrics.h"
#include "random.h"

#include <redco/error.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <sstream>

namespace redco {

namespace {

// Streams of a Trainer's random numbers that must not meet; `train_step.cpp` has its own.
constexpr uint64_t eval_stream = 2;

std::string with_thousands(int64_t number) {
  std::string digits = std::to_string(number);
  for (int64_t i = int64_t(digits.size()) - 3; i > 0; i -= 3) digits.insert(size_t(i), ",");
  return digits;
}

void check_not_empty(const char* what, const Dataset& examples) {
  require(examples.size > 0, what, ": the set of examples is empty");
  require(bool(examples.collate), what, ": the dataset has no collate function");
}

// The same memory, seen the same way: tied weights.
bool is_same_tensor(const at::Tensor& a, const at::Tensor& b) {
  return a.is_same(b) || (a.has_storage() && b.has_storage() && a.is_alias_of(b) &&
                          a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() &&
                          a.strides() == b.strides() && a.numel() > 0);
}

}  // namespace

Trainer::Trainer(TrainerOptions options)
    : deployer_(std::move(options.deployer)),
      loss_fn_(std::move(options.loss_fn)),
      optimizer_(std::move(options.optimizer)),
      compute_dtype_(options.compute_dtype),
      lr_schedule_fn_(std::move(options.lr_schedule_fn)),
      accumulate_grad_batches_(options.accumulate_grad_batches),
      train_step_fn_(std::move(options.train_step_fn)),
      collate_(options.collate),
      params_sharding_rules_(std::move(options.params_sharding_rules)) {
  require(deployer_ != nullptr, "Trainer: deployer is missing");
  require(bool(loss_fn_), "Trainer: loss_fn is missing");
  require(optimizer_ != nullptr, "Trainer: optimizer is missing");
  require(compute_dtype_ == at::kFloat || compute_dtype_ == at::kDouble ||
              compute_dtype_ == at::kBFloat16 || compute_dtype_ == at::kHalf,
          "Trainer: compute_dtype = ", compute_dtype_,
          " is not one of float32, float64, bfloat16 and float16");
  require(accumulate_grad_batches_.value_or(1) > 0,
          "Trainer: accumulate_grad_batches = ", accumulate_grad_batches_.value_or(1),
          " must be positive");
  require(!train_step_fn_ || accumulate_grad_batches_.value_or(1) == 1,
          "Trainer: accumulate_grad_batches = ", accumulate_grad_batches_.value_or(1),
          " has no effect on a train_step_fn, which is given the whole batch: accumulate in it");
  seed_ = deployer_->new_trainer_seed();
  adopt(std::move(options.params), std::move(options.opt_state), options.step, options.loss_scale);

  int64_t all = 0, trained = 0;
  std::set<const void*> counted;  // tied weights once
  for (const auto& [name, tensor] : named_tensors(state_.params)) {
    if (!counted.insert(tensor.unsafeGetTensorImpl()).second) continue;
    all += tensor.numel();
    if (tensor.requires_grad()) trained += tensor.numel();
  }
  deployer_->log_info(
      with_thousands(all) + (trained < all ? ", of which trained: " + with_thousands(trained) : ""),
      "Parameters");
}

Trainer::~Trainer() = default;

void Trainer::set_train_state(SetTrainStateOptions options) {
  if (options.optimizer) optimizer_ = std::move(options.optimizer);
  adopt(std::move(options.params), std::move(options.opt_state), options.step, options.loss_scale);
}

void Trainer::adopt(Tree params, std::optional<Tree> opt_state, int64_t step,
                    std::optional<LossScale> loss_scale) {
  require(optimizer_->updates_params(),
          "Trainer: the optimizer only changes gradients: chain it with one that updates the "
          "parameters (adamw, sgd, ...)");
  require(step >= 0, "Trainer: step = ", step, " must not be negative");
  bool is_scaled = compute_dtype_ == at::kHalf;
  require(is_scaled || !loss_scale, "Trainer: loss_scale is for compute_dtype = float16; ",
          compute_dtype_, " needs none: leave it out");
  if (loss_scale) check_loss_scale(*loss_scale);
  reducer_.reset();
  store_.reset();
  names_.clear();
  leaves_.clear();
  updates_.clear();
  updated_.clear();
  update_ = {};
  casts_ = false;
  device_ = deployer_->device().value_or(device_of(params));
  require(deployer_->mesh()->world().size() == 1 ||
              device_.type() == deployer_->mesh()->device().type(),
          "Trainer: the parameters are on ", device_, ", and the processes work on ",
          deployer_->mesh()->device(), ": make the Deployer with device = \"",
          c10::DeviceTypeName(device_.type(), true), "\"");

  // What was given, and what stands for it here, by storage: tied weights stay tied.
  std::multimap<const void*, std::pair<at::Tensor, at::Tensor>> seen;
  state_.params = map_tensors(params, [&](const std::string& name, const at::Tensor& given) {
    require(given.defined(), "Trainer: parameter '", name, "' is undefined");
    const void* key = given.has_storage() ? given.storage().unsafeGetStorageImpl()
                                          : static_cast<const void*>(given.unsafeGetTensorImpl());
    auto [first, last] = seen.equal_range(key);
    for (; first != last; ++first)
      if (is_same_tensor(first->second.first, given)) return first->second.second;
    bool is_sole_owner =
        given.use_count() == 1 && given.has_storage() && given.storage().use_count() == 1;
    at::Tensor own = given.detach();
    bool is_moved = deployer_->device() && given.device() != device_;
    if (is_moved) own = own.to(device_);
    if (given.is_floating_point()) {
      casts_ |= given.scalar_type() != compute_dtype_;
      if (optimizer_->trains(name)) {
        require(given.layout() == at::kStrided, "Trainer: parameter '", name, "' is ",
                given.layout(), "; only dense tensors can be trained");
        require(!is_scaled || given.scalar_type() != at::kHalf, "Trainer: parameter '", name,
                "' is float16; its updates would be too small for that: with compute_dtype = "
                "float16 give float32 params, which are cast for the loss");
        // The optimizers change it in place, and walk it as one piece of memory. Of several
        // processes each copies its part when that is known.
        bool is_own = is_sole_owner || is_moved || deployer_->mesh()->world().size() > 1;
        if (!is_own || !own.is_non_overlapping_and_dense()) own = own.clone();
        own.set_requires_grad(true);
        names_.push_back(name);
        leaves_.push_back(own);
      }
    }
    seen.emplace(key, std::pair(given, own));
    return own;
  });
  require(
      !leaves_.empty(),
      "Trainer: nothing to train: params has no floating-point tensor that the optimizer trains");

  state_.step = step;
  state_.loss_scale = is_scaled ? loss_scale.value_or(LossScale{}) : loss_scale;
  is_laid_out_ = false;
  given_opt_state_ = std::move(opt_state);
  // With model shards the first batch says how.
  if (deployer_->mesh()->size(Mesh::mp) == 1) lay_out({});
}

Predictor Trainer::get_default_predictor(PredFn pred_fn, OutputFn output_fn) const {
  return Predictor(
      {deployer_, std::move(pred_fn), std::move(output_fn), collate_, params_sharding_rules_});
}

std::optional<double> Trainer::learning_rate() const {
  auto rate = optimizer_->learning_rate(state_.step);
  if (!rate && lr_schedule_fn_) rate = lr_schedule_fn_(state_.step);
  return rate;
}

Trainer::Batching Trainer::batching(int64_t per_device_batch_size,
                                    std::optional<int64_t> global_batch_size) const {
  int64_t micro = deployer_->get_local_global_micro_batch_size(per_device_batch_size).second;
  if (!global_batch_size) return {micro, accumulate_grad_batches_.value_or(1)};
  int64_t derived =
      deployer_->get_accumulate_grad_batches(*global_batch_size, per_device_batch_size);
  require(accumulate_grad_batches_.value_or(derived) == derived,
          "Trainer: global_batch_size = ", *global_batch_size, " means ", derived,
          " micro-batches of ", micro, ", accumulate_grad_batches says ",
          accumulate_grad_batches_.value_or(derived), ": give one of them");
  require(!train_step_fn_ || derived == 1, "Trainer: global_batch_size = ", *global_batch_size,
          " means ", derived, " micro-batches of ", micro,
          ", but a train_step_fn is given the whole batch: make per_device_batch_size larger");
  return {micro, derived};
}

std::string Trainer::training_desc(const std::string& desc, const Batching& batching) const {
  std::ostringstream text;
  text << desc << " (global_batch_size = " << batching.micro * batching.accumulate;
  if (batching.accumulate > 1) text << ", accumulate_grad_batches = " << batching.accumulate;
  text << ")";
  return text.str();
}

void Trainer::train(const Dataset& examples, int64_t per_device_batch_size,
                    const std::string& desc) {
  train_epoch(examples, batching(per_device_batch_size, {}), epochs_done_++, desc, {});
}

void Trainer::fit(const FitOptions& options) {
  require(options.n_epochs >= 0, "fit: n_epochs = ", options.n_epochs, " must not be negative");
  require(!options.eval_metrics || options.eval_examples,
          "fit: eval_metrics needs eval_examples to evaluate");
  if (options.eval_examples) check_not_empty("fit: eval_examples", *options.eval_examples);
  Batching batches = batching(options.per_device_batch_size, options.global_batch_size);
  auto is_done = [&] { return options.max_steps && state_.step >= *options.max_steps; };

  if (options.eval_examples && options.eval_sanity_check) check_evaluation(options);
  for (int64_t epoch = 0; epoch < options.n_epochs && !is_done(); ++epoch) {
    const auto* each = std::get_if<std::function<Dataset(int64_t)>>(&options.train_examples);
    require(!each || *each, "fit: train_examples is an empty function");
    Dataset examples = each ? (*each)(epoch) : std::get<Dataset>(options.train_examples);
    std::string place =
        "(epoch " + std::to_string(epoch) + " / " + std::to_string(options.n_epochs) + ")";
    train_epoch(examples, batches, uint64_t(epoch), "Training " + place, options.max_steps);
    if (options.eval_examples) evaluate(options, "Evaluating " + place);
  }
}

void Trainer::train_epoch(const Dataset& examples, const Batching& batching, uint64_t epoch,
                          const std::string& desc, std::optional<int64_t> max_steps) {
  check_not_empty("training", examples);
  setup_running_step(examples, batching.micro / deployer_->mesh()->size(Mesh::dp));
  std::vector<int64_t> order = epoch_order(examples.size, seed_, epoch);
  size_t batch_size = size_t(batching.micro * batching.accumulate);
  auto progress =
      deployer_->run_log().progress(training_desc(desc, batching), examples.size, "examples");
  std::map<std::string, double> shown;
  std::optional<PendingMetrics> previous;
  try {
    for (size_t first = 0; first < order.size(); first += batch_size) {
      if (max_steps && state_.step >= *max_steps) break;
      auto indices = std::span(order).subspan(first, std::min(batch_size, order.size() - first));
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
  deployer_->log_metrics(shown, pending.step());
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

void Trainer::evaluate(const FitOptions& options, const std::string& desc) {
  const Dataset& examples = *options.eval_examples;
  int64_t batch_size = options.eval_per_device_batch_size.value_or(options.per_device_batch_size);
  std::map<std::string, double> results;
  if (options.eval_loss) results["loss"] = eval_loss(examples, batch_size, desc);
  if (options.eval_metrics) results.merge(options.eval_metrics(examples));
  if (results.empty()) return;
  deployer_->run_log().evaluation(state_.step, results);
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
