// Construction of a Trainer: its parameters, options and batch sizes.

#include <redco/trainer.h>

#include "batches.h"
#include "gradient_reducer.h"
#include "loss_scaler.h"
#include "run_state.h"
#include "step_meter.h"

#include <redco/error.h>

#include <set>
#include <sstream>

namespace redco {

namespace {

std::string with_thousands(int64_t number) {
  std::string digits = std::to_string(number);
  for (int64_t i = int64_t(digits.size()) - 3; i > 0; i -= 3) digits.insert(size_t(i), ",");
  return digits;
}

}  // namespace

Trainer::Trainer(TrainerOptions options)
    : deployer_(std::move(options.deployer)),
      loss_fn_(std::move(options.loss_fn)),
      optimizer_(std::move(options.optimizer)),
      compute_dtype_(options.compute_dtype),
      autocast_dtype_(options.autocast_dtype),
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
  require(!autocast_dtype_ || compute_dtype_ == at::kFloat,
          "Trainer: autocast_dtype = ", autocast_dtype_.value_or(at::kFloat),
          " is for compute_dtype = float32, not ", compute_dtype_);
  require(!autocast_dtype_ || at::isReducedFloatingType(*autocast_dtype_),
          "Trainer: autocast_dtype = ", autocast_dtype_.value_or(at::kFloat),
          " is not one of bfloat16 and float16");
  require(accumulate_grad_batches_.value_or(1) > 0,
          "Trainer: accumulate_grad_batches = ", accumulate_grad_batches_.value_or(1),
          " must be positive");
  require(!train_step_fn_ || accumulate_grad_batches_.value_or(1) == 1,
          "Trainer: accumulate_grad_batches = ", accumulate_grad_batches_.value_or(1),
          " has no effect on a train_step_fn, which is given the whole batch: accumulate in it");
  seed_ = deployer_->new_trainer_seed();
  run_ = std::make_unique<RunState>();
  resume_from(options.last_ckpt_info);
  adopt(std::move(options.params), std::move(options.opt_state),
        step_of(options.last_ckpt_info, options.step),
        loss_scale_of(options.last_ckpt_info, options.loss_scale));

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

bool Trainer::is_scaled() const { return autocast_dtype_.value_or(compute_dtype_) == at::kHalf; }

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
  require(is_scaled() || !loss_scale, "Trainer: loss_scale is for compute_dtype = float16; ",
          autocast_dtype_.value_or(compute_dtype_), " needs none: leave it out");
  if (loss_scale) check_loss_scale(*loss_scale);
  reducer_.reset();
  store_.reset();
  names_.clear();
  leaves_.clear();
  updates_.clear();
  updated_.clear();
  update_ = {};
  needs_cast_ = false;
  device_ = deployer_->device().value_or(device_of(params));
  meter_ = std::make_unique<StepMeter>(deployer_->run_log().writes_files(), device_,
                                       autocast_dtype_.value_or(compute_dtype_),
                                       deployer_->mesh()->world().size() == 1);
  require(deployer_->mesh()->world().size() == 1 ||
              device_.type() == deployer_->mesh()->device().type(),
          "Trainer: the parameters are on ", device_, ", and the processes work on ",
          deployer_->mesh()->device(), ": make the Deployer with device = \"",
          c10::DeviceTypeName(device_.type(), true), "\"");

  // Given tensors and their replacements here, by storage, so that tied weights stay tied.
  std::multimap<const void*, std::pair<at::Tensor, at::Tensor>> seen;
  state_.params = map_tensors(params, [&](const std::string& name, const at::Tensor& given) {
    require(given.defined(), "Trainer: parameter '", name, "' is undefined");
    auto [first, last] = seen.equal_range(memory_key(given));
    for (; first != last; ++first)
      if (is_same_tensor(first->second.first, given)) return first->second.second;
    bool is_sole_owner =
        given.use_count() == 1 && given.has_storage() && given.storage().use_count() == 1;
    at::Tensor own = given.detach();
    bool is_moved = deployer_->device() && given.device() != device_;
    if (is_moved) own = own.to(device_);
    if (given.is_floating_point()) {
      needs_cast_ |= given.scalar_type() != compute_dtype_;
      if (optimizer_->trains(name)) {
        require(given.layout() == at::kStrided, "Trainer: parameter '", name, "' is ",
                given.layout(), "; only dense tensors can be trained");
        require(!is_scaled() || given.scalar_type() != at::kHalf, "Trainer: parameter '", name,
                "' is float16; its updates would be too small for that: with compute_dtype = "
                "float16 give float32 params, which are cast for the loss");
        // The optimizers update it in place as one dense block of memory. With several processes
        // each copies its part once that is known.
        bool is_own = is_sole_owner || is_moved || deployer_->mesh()->world().size() > 1;
        if (!is_own || !own.is_non_overlapping_and_dense()) own = own.clone();
        own.set_requires_grad(true);
        names_.push_back(name);
        leaves_.push_back(own);
      }
    }
    seen.emplace(memory_key(given), std::pair(given, own));
    return own;
  });
  require(
      !leaves_.empty(),
      "Trainer: nothing to train: params has no floating-point tensor that the optimizer trains");

  state_.step = step;
  state_.loss_scale = is_scaled() ? loss_scale.value_or(LossScale{}) : loss_scale;
  is_laid_out_ = false;
  given_opt_state_ = std::move(opt_state);
  if (given_opt_state_ && deployer_->device())
    given_opt_state_ = to_device(std::move(*given_opt_state_), device_);
  // With model shards the first batch determines the layout.
  if (deployer_->mesh()->size(Mesh::mp) == 1) lay_out({});
}

Predictor Trainer::get_default_predictor(PredFn pred_fn, OutputFn output_fn) const {
  return Predictor({deployer_, std::move(pred_fn), std::move(output_fn), collate_, compute_dtype_,
                    autocast_dtype_, params_sharding_rules_});
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

}  // namespace redco
