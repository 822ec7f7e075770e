// The training loop over epochs and steps, with logging and evaluation in between.

#include "fit.h"

#include "../../optim/log_actions.h"
#include "../batches/batches.h"
#include "../batches/lookahead.h"
#include "../random.h"
#include "evaluation.h"

#include <redco/detail/notices.h>
#include <redco/error.h>
#include <redco/safetensors.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <span>
#include <sstream>
#include <utility>

namespace redco::train {

namespace {

constexpr int64_t most_skipped_in_a_row = 10;

void check_interval(const char* name, const std::optional<int64_t>& value) {
  require(value.value_or(1) > 0, "fit: ", name, " = ", value.value_or(1), " must be positive");
}

std::string described(int64_t n_examples, const Batching& batching) {
  std::ostringstream text;
  text << "Training on " << n_examples
       << " examples, global_batch_size = " << batching.global_batch_size();
  if (batching.accumulate > 1) text << ", accumulate_grad_batches = " << batching.accumulate;
  return text.str();
}

}  // namespace

Fit::Fit(TrainStep& step, RunState& run, const FitOptions& options)
    : step_(step),
      run_(run),
      options_(options),
      deployer_(*step.deployer()),
      batching_(step.batching(options.per_device_batch_size, options.global_batch_size)),
      stopping_(deployer_.mesh(), options.max_seconds, options.stop),
      watch_([this] { return stopping_.signal(); }, [this](int signal) { give_up(signal); }),
      profile_(options.profile, step.device().type(), deployer_.workdir(), deployer_.run_log()),
      hooked_step_(step.state().step),
      handled_step_(run.is_evaluation_due ? -1 : step.state().step) {
  done_.first_step = step.state().step;
  step_.skip_nonfinite(options_.on_nonfinite != OnNonfinite::stop);
}

void Fit::check_options() const {
  const FitOptions& o = options_;
  require(o.n_epochs >= 0, "fit: n_epochs = ", o.n_epochs, " must not be negative");
  check_interval("eval_every_k_steps", o.eval_every_k_steps);
  check_interval("save_ckpt_every_k_epochs", o.save_ckpt_every_k_epochs);
  check_interval("save_ckpt_every_k_steps", o.save_ckpt_every_k_steps);
  check_interval("keep_last_k_ckpts", o.keep_last_k_ckpts);
  require(o.max_seconds.value_or(1) > 0, "fit: max_seconds = ", o.max_seconds.value_or(1),
          " must be positive");
  bool evaluates = o.eval_examples && (o.eval_loss || o.eval_metrics);
  require(!o.eval_metrics || o.eval_examples, "fit: eval_metrics needs eval_examples to evaluate");
  for (const auto& [name, is_asked] :
       {std::pair("eval_every_k_steps", o.eval_every_k_steps.has_value()),
        std::pair("save_argmin_ckpt_by_metrics", !o.save_argmin_ckpt_by_metrics.empty()),
        std::pair("save_argmax_ckpt_by_metrics", !o.save_argmax_ckpt_by_metrics.empty()),
        std::pair("early_stopping", o.early_stopping.has_value()),
        std::pair("a learning rate of on_plateau", step_.needs_metrics())})
    require(!is_asked || evaluates, "fit: ", name, " needs eval_examples to evaluate");
  if (o.early_stopping)
    require(o.early_stopping->patience > 0 && o.early_stopping->min_delta >= 0,
            "fit: early_stopping: patience must be positive and min_delta not negative");
  if (o.eval_examples) check_examples("fit: eval_examples", *o.eval_examples);
  require(!saves() || !deployer_.workdir().empty(),
          "fit: checkpoints need a folder: make the Deployer with workdir");
  require(o.on_nonfinite != OnNonfinite::restore || saves(),
          "fit: on_nonfinite = \"restore\" goes back to a checkpoint, but none is asked for: give "
          "save_ckpt_every_k_steps");
}

bool Fit::saves() const {
  const FitOptions& o = options_;
  return o.save_ckpt_every_k_epochs || o.save_ckpt_every_k_steps || o.save_last_ckpt ||
         !o.save_argmin_ckpt_by_metrics.empty() || !o.save_argmax_ckpt_by_metrics.empty();
}

Dataset Fit::examples_of_epoch() const {
  const auto* each = std::get_if<std::function<Dataset(int64_t)>>(&options_.train_examples);
  require(!each || *each, "fit: train_examples is an empty function");
  return each ? (*each)(run_.epoch_idx) : std::get<Dataset>(options_.train_examples);
}

void Fit::run() {
  check_options();
  if (options_.eval_examples && options_.eval_sanity_check) check_evaluation();
  while (run_.epoch_idx < options_.n_epochs && !is_over_ &&
         (run_.is_evaluation_due || !is_at_last_step())) {
    is_restored_ = false;
    std::string place =
        "Epoch " + std::to_string(run_.epoch_idx) + " / " + std::to_string(options_.n_epochs);
    bool is_epoch_done = train_epoch(examples_of_epoch(), place);
    if (is_restored_) continue;
    done_.n_epochs += is_epoch_done;
    std::vector<std::string> names;
    int64_t every_k = options_.save_ckpt_every_k_epochs.value_or(0);
    if (is_epoch_done && every_k > 0 && (run_.epoch_idx + 1) % every_k == 0)
      names.push_back("epoch_" + std::to_string(run_.epoch_idx));
    if (options_.save_last_ckpt) names.push_back("last");
    if (is_epoch_done || is_at_last_step())
      evaluate_and_save(names, is_epoch_done);
    else
      save(names, false, options_.save_in_background);
    if (!is_epoch_done || run_.is_evaluation_due) break;
    ++run_.epoch_idx;
    run_.n_examples = 0;
  }
  {
    Waiting waiting("the last checkpoint to be written");
    writing([&] { deployer_.checkpoints().wait(); });
  }
  log_summary();
}

bool Fit::train_epoch(const Dataset& examples, const std::string& desc) {
  check_examples("training", examples);
  log_action("trains on", examples.size, "examples");
  step_.lay_out(examples, batching_.micro / deployer_.mesh()->size(Mesh::batch));
  require(run_.n_examples == 0 || run_.epoch_size == examples.size,
          "fit: the checkpoint is in the midst of an epoch of ", run_.epoch_size,
          " examples, but epoch ", run_.epoch_idx, " has ", examples.size,
          " now: go on with the same examples, or from a checkpoint at the end of an epoch");
  run_.epoch_size = examples.size;
  std::vector<int64_t> order =
      options_.shuffle ? epoch_order(examples.size, step_.seed(), uint64_t(run_.epoch_idx))
                       : index_range(0, examples.size);
  Dataset ahead = from_here(examples, order);
  int64_t batch_size = batching_.global_batch_size();
  if (done_.n_examples == 0) deployer_.run_log().note(described(examples.size, batching_));
  auto progress = deployer_.run_log().progress(desc, examples.size, "examples");
  if (options_.n_epochs > 1 || options_.max_steps) {
    double n = double(options_.n_epochs);
    double n_steps = std::ceil(double(examples.size) / double(batch_size));
    if (options_.max_steps) n = std::min(n, double(*options_.max_steps) / n_steps);
    progress->set_part_of_run(double(run_.epoch_idx) / n, double(run_.epoch_idx + 1) / n);
  }
  progress->skip(run_.n_examples);
  auto start = std::chrono::steady_clock::now();
  try {
    // Code below handles an evaluation at the end of an epoch or of the run.
    bool is_due = std::exchange(run_.is_evaluation_due, false);
    if (is_due && run_.n_examples < examples.size && !is_at_last_step()) after_step(ahead);
    while (run_.n_examples < examples.size && !is_done() && !is_restored_) {
      int64_t first = run_.n_examples, n = std::min(batch_size, examples.size - first);
      bool is_left_out = run_.left_out_batches.contains({run_.epoch_idx, first});
      if (!is_left_out) train_step(ahead, std::span(order).subspan(size_t(first), size_t(n)));
      if (is_restored_) break;
      run_.n_examples = first + n;
      done_.n_examples += n;
      if (is_left_out) ahead = from_here(examples, order);
      call_on_step();
      after_step(ahead);
      progress->advance(n, shown_);
    }
    finish_step(ahead);
    progress->advance(0, shown_);
  } catch (...) {
    // Log the last completed step, whatever stopped the next one.
    try {
      if (running_) log(running_->metrics);
    } catch (const std::exception&) {
      // It failed too, for the same reason.
    }
    throw;
  }
  done_.in_epochs += std::chrono::steady_clock::now() - start;
  return run_.n_examples >= examples.size && !is_restored_;
}

// A dataset for the rest of an epoch.
Dataset Fit::from_here(const Dataset& examples, std::span<const int64_t> order) const {
  uint64_t seed = derive_seed(step_.seed(), {uint64_t(collate_stream), uint64_t(run_.epoch_idx)});
  Pass pass{.order = order,
            .batch_size = batching_.micro,
            .batches_per_step = batching_.accumulate,
            .seed = seed,
            .collate = step_.collate()};
  // A run that resumes with another batch size may start inside a batch.
  if (run_.n_examples % (batching_.global_batch_size()) == 0)
    pass.first_batch = run_.n_examples / batching_.micro;
  else
    pass.order = order.subspan(size_t(run_.n_examples));
  Dataset ahead = with_lookahead(examples, pass, deployer_.mesh());
  ahead.collate = [this, collate = std::move(ahead.collate)](const std::vector<int64_t>& indices) {
    CollateWatch::Inside inside(watch_);
    return collate(indices);
  };
  return ahead;
}

void Fit::train_step(const Dataset& examples, std::span<const int64_t> indices) {
  StepProfile::Step profiled(profile_, step_.state().step);
  Running now{step_.run(examples, indices, batching_.micro), {indices.begin(), indices.end()}};
  // Read while the next step runs, so that the step just issued is not waited for.
  finish_step(examples);
  if (now.metrics.is_left_out() && step_.skips_nonfinite()) {
    handle_left_out(examples, now);
  } else {
    n_skipped_ = 0;
    running_.emplace(std::move(now));
  }
}

void Fit::log(PendingMetrics& metrics) {
  shown_ = metrics.read();
  logging([&] {
    deployer_.log_metrics(step_.meter().with_measured(shown_, metrics.step()), metrics.step());
  });
}

void Fit::finish_step(const Dataset& examples) {
  if (!running_) return;
  Running done = *std::exchange(running_, std::nullopt);
  log(done.metrics);
  if (done.metrics.is_left_out()) return;
  for (const char* name : {"loss", "grad_norm"}) {
    auto found = shown_.find(name);
    if (found == shown_.end() || std::isfinite(found->second)) continue;
    keep_batch(examples, done);
    fail("training: the ", name, " of step ", done.metrics.step(), " is ", found->second,
         ". Look at the batch, for logarithms and divisions by zero in loss_fn, and for a "
         "learning rate that is too high. The parameters have been updated with its gradients");
  }
}

// Handles periodic evaluation and saving, and requests to stop.
void Fit::after_step(const Dataset& examples) {
  int64_t step = step_.state().step;
  bool is_new = std::exchange(handled_step_, step) != step;
  auto is_due = [&](const std::optional<int64_t>& every_k) {
    return is_new && every_k && step % *every_k == 0;
  };
  // At the end of an epoch, or of the run, an evaluation follows anyway.
  bool evaluates = is_due(options_.eval_every_k_steps) && run_.n_examples < run_.epoch_size &&
                   !is_at_last_step();
  bool saves = is_due(options_.save_ckpt_every_k_steps);
  writing([&] { deployer_.checkpoints().check(); });
  auto reason = stopping_.after_step();
  if (!evaluates && !saves && !reason) return;
  finish_step(examples);  // never save a state with a non-finite loss
  std::vector<std::string> names;
  if (saves) names.push_back("step_" + std::to_string(step));
  if (evaluates)
    evaluate_and_save(names, false);
  else
    save_or_stop(names, false);
}

void Fit::handle_left_out(const Dataset& examples, Running& left_out) {
  int64_t step = left_out.metrics.step();
  log(left_out.metrics);
  keep_batch(examples, left_out);
  if (options_.on_nonfinite == OnNonfinite::restore) return restore();
  deployer_.log_info("The loss or the gradients are not finite: the batch is skipped", "", step);
  require(++n_skipped_ < most_skipped_in_a_row, "training: at step ", step, " ",
          most_skipped_in_a_row,
          " batches in a row gave a loss or gradients that are not finite. "
          "The parameters are those before the first of them");
}

void Fit::keep_batch(const Dataset& examples, const Running& running) {
  if (deployer_.workdir().empty()) return;
  int64_t step = running.metrics.step();
  std::string path =
      deployer_.workdir() + "/nonfinite_step_" + std::to_string(step) + ".safetensors";
  try {
    Tree batch =
        make_batch(examples, running.indices, step_.collate(), step_.device(), deployer_.mesh());
    if (deployer_.mesh()->world().size() == 1 || !named_tensors(batch).empty())
      save_tree(path, batch);
    deployer_.log_info("The batch whose loss or gradients are not finite is " + path, "", step);
  } catch (const Interrupted&) {
    throw;
  } catch (const std::exception& error) {
    deployer_.log_info(std::string("The batch could not be kept: ") + error.what(), "", step);
  }
}

}  // namespace redco::train
