// The loop over epochs and steps, and what happens between them.

#include <redco/trainer.h>

#include "batches.h"
#include "lookahead.h"
#include "pending_metrics.h"
#include "random.h"
#include "run_state.h"
#include "step_meter.h"
#include "step_profile.h"
#include "stopping.h"

#include <redco/error.h>
#include <redco/safetensors.h>
#include <redco/stop.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <functional>
#include <span>
#include <sstream>
#include <utility>

namespace redco {

namespace {

// A stream of the Trainer's random numbers; `train_step.cpp` and `evaluation.cpp` have theirs.
constexpr uint64_t collate_stream = 3;
constexpr int64_t most_skipped_in_a_row = 10;
constexpr int64_t most_restores = 2;

[[noreturn]] void fail_without(const std::string& metric,
                               const std::map<std::string, double>& results) {
  std::vector<std::string> names;
  for (const auto& [name, value] : results) names.push_back(name);
  std::string near = nearest(metric, names), all;
  for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
  fail("fit: the evaluation has no metric '", metric, "'; it has ", all,
       near.empty() ? "" : ": did you mean " + near + "?");
}

void check_positive(const char* name, const std::optional<int64_t>& value) {
  require(value.value_or(1) > 0, "fit: ", name, " = ", value.value_or(1), " must be positive");
}

}  // namespace

// One call of `fit`. What it is in the midst of is the Trainer's RunState.
class Trainer::Fit {
 public:
  Fit(Trainer& trainer, const FitOptions& options)
      : trainer_(trainer),
        options_(options),
        run_(*trainer.run_),
        deployer_(*trainer.deployer_),
        batching_(trainer.batching(options.per_device_batch_size, options.global_batch_size)),
        stopping_(deployer_.mesh(), options.max_seconds),
        profile_(options.profile, trainer.device_.type(), deployer_.workdir(),
                 deployer_.run_log()) {}

  void run();
  // One pass over the examples; false when it ended early.
  bool train_epoch(const Dataset& examples, const std::string& desc);

 private:
  void check_options() const;
  bool saves() const;
  Dataset examples_of_epoch() const;
  bool is_done() const { return is_over_ || is_at_last_step(); }
  bool is_at_last_step() const {
    return options_.max_steps && trainer_.state_.step >= *options_.max_steps;
  }

  // A step whose metrics are on their way, and the examples it was about.
  struct Running {
    PendingMetrics metrics;
    std::vector<int64_t> indices;
  };

  Dataset from_here(const Dataset& examples, std::span<const int64_t> order) const;
  void train_step(const Dataset& examples, std::span<const int64_t> indices);
  void log(PendingMetrics& metrics);
  void finish_step(const Dataset& examples);
  void after_step(const Dataset& examples);
  void handle_left_out(const Dataset& examples, Running& left_out);
  void keep_batch(const Dataset& examples, const Running& running);
  void restore();
  void evaluate_and_save(std::vector<std::string> names, bool is_epoch_done);
  std::vector<std::string> note_best(const std::map<std::string, double>& results);
  void note_for_early_stopping(const std::map<std::string, double>& results);
  void stop(const Stopping::Reason& reason);
  void save(const std::vector<std::string>& names, bool is_epoch_done, bool in_background);
  void writing(const std::function<void()>& write);

  Trainer& trainer_;
  const FitOptions& options_;
  RunState& run_;
  Deployer& deployer_;
  Batching batching_;
  Stopping stopping_;
  StepProfile profile_;
  std::optional<Running> running_;
  std::map<std::string, double> shown_;
  std::string last_saved_;    // the newest checkpoint of this run
  int64_t n_restores_ = 0;    // since it
  int64_t n_skipped_ = 0;     // in a row
  int64_t handled_step_ = 0;  // the last that was followed by what is to be done each k steps
  bool is_over_ = false;      // the time is, or it no longer gets better
  bool is_restored_ = false;  // it goes on elsewhere
};

void Trainer::fit(const FitOptions& options) {
  Fit(*this, options).run();
  *run_ = {};  // a next call begins anew
}

void Trainer::train(const Dataset& examples, int64_t per_device_batch_size,
                    const std::string& desc) {
  FitOptions options;
  options.per_device_batch_size = per_device_batch_size;
  Fit(*this, options).train_epoch(examples, desc);
  int64_t next = run_->epoch_idx + 1;
  *run_ = {};
  run_->epoch_idx = next;
}

void Trainer::Fit::check_options() const {
  const FitOptions& o = options_;
  require(o.n_epochs >= 0, "fit: n_epochs = ", o.n_epochs, " must not be negative");
  check_positive("eval_every_k_steps", o.eval_every_k_steps);
  check_positive("save_ckpt_every_k_epochs", o.save_ckpt_every_k_epochs);
  check_positive("save_ckpt_every_k_steps", o.save_ckpt_every_k_steps);
  check_positive("keep_last_k_ckpts", o.keep_last_k_ckpts);
  require(o.max_seconds.value_or(1) > 0, "fit: max_seconds = ", o.max_seconds.value_or(1),
          " must be positive");
  bool evaluates = o.eval_examples && (o.eval_loss || o.eval_metrics);
  require(!o.eval_metrics || o.eval_examples, "fit: eval_metrics needs eval_examples to evaluate");
  for (const auto& [name, is_asked] :
       {std::pair("eval_every_k_steps", o.eval_every_k_steps.has_value()),
        std::pair("save_argmin_ckpt_by_metrics", !o.save_argmin_ckpt_by_metrics.empty()),
        std::pair("save_argmax_ckpt_by_metrics", !o.save_argmax_ckpt_by_metrics.empty()),
        std::pair("early_stopping", o.early_stopping.has_value())})
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

bool Trainer::Fit::saves() const {
  const FitOptions& o = options_;
  return o.save_ckpt_every_k_epochs || o.save_ckpt_every_k_steps || o.save_last_ckpt ||
         !o.save_argmin_ckpt_by_metrics.empty() || !o.save_argmax_ckpt_by_metrics.empty();
}

Dataset Trainer::Fit::examples_of_epoch() const {
  const auto* each = std::get_if<std::function<Dataset(int64_t)>>(&options_.train_examples);
  require(!each || *each, "fit: train_examples is an empty function");
  return each ? (*each)(run_.epoch_idx) : std::get<Dataset>(options_.train_examples);
}

void Trainer::Fit::run() {
  check_options();
  trainer_.leaves_out_nonfinite_ =
      options_.on_nonfinite != OnNonfinite::stop && !trainer_.state_.loss_scale;
  handled_step_ = trainer_.state_.step;
  if (saves() && deployer_.mesh()->world().rank() == 0) clean_checkpoints(deployer_.ckpts_dir());
  if (options_.eval_examples && options_.eval_sanity_check) trainer_.check_evaluation(options_);
  while (run_.epoch_idx < options_.n_epochs && !is_done()) {
    is_restored_ = false;
    std::string place = "Training (epoch " + std::to_string(run_.epoch_idx) + " / " +
                        std::to_string(options_.n_epochs) + ")";
    bool is_epoch_done = train_epoch(examples_of_epoch(), place);
    if (is_restored_) continue;
    std::vector<std::string> names;
    int64_t every_k = options_.save_ckpt_every_k_epochs.value_or(0);
    if (is_epoch_done && every_k > 0 && (run_.epoch_idx + 1) % every_k == 0)
      names.push_back("epoch_" + std::to_string(run_.epoch_idx));
    if (options_.save_last_ckpt) names.push_back("last");
    if (is_epoch_done || is_at_last_step())
      evaluate_and_save(names, is_epoch_done);
    else
      save(names, false, options_.save_in_background);
    if (!is_epoch_done) break;
    ++run_.epoch_idx;
    run_.n_examples = 0;
  }
  writing([&] { deployer_.checkpoints().wait(); });
}

bool Trainer::Fit::train_epoch(const Dataset& examples, const std::string& desc) {
  check_examples("training", examples);
  int64_t dp = deployer_.mesh()->size(Mesh::dp);
  trainer_.setup_running_step(examples, batching_.micro / dp);
  require(run_.n_examples == 0 || run_.epoch_size == examples.size,
          "fit: the checkpoint is in the midst of an epoch of ", run_.epoch_size,
          " examples, but epoch ", run_.epoch_idx, " has ", examples.size,
          " now: go on with the same examples, or from a checkpoint at the end of an epoch");
  run_.epoch_size = examples.size;
  std::vector<int64_t> order = epoch_order(examples.size, trainer_.seed_, uint64_t(run_.epoch_idx));
  Dataset ahead = from_here(examples, order);
  int64_t batch_size = batching_.micro * batching_.accumulate;
  auto progress = deployer_.run_log().progress(trainer_.training_desc(desc, batching_),
                                               examples.size, "examples");
  if (options_.n_epochs > 1 || options_.max_steps) {
    double n = double(options_.n_epochs);
    double n_steps = std::ceil(double(examples.size) / double(batch_size));
    if (options_.max_steps) n = std::min(n, double(*options_.max_steps) / n_steps);
    progress->set_part_of_run(double(run_.epoch_idx) / n, double(run_.epoch_idx + 1) / n);
  }
  progress->advance(run_.n_examples);
  try {
    while (run_.n_examples < examples.size && !is_done() && !is_restored_) {
      int64_t first = run_.n_examples, n = std::min(batch_size, examples.size - first);
      bool is_left_out = run_.left_out_batches.contains({run_.epoch_idx, first});
      if (!is_left_out) train_step(ahead, std::span(order).subspan(size_t(first), size_t(n)));
      if (is_restored_) break;
      run_.n_examples = first + n;
      if (is_left_out) ahead = from_here(examples, order);
      after_step(examples);
      progress->advance(n, shown_);
    }
    finish_step(examples);
    progress->advance(0, shown_);
  } catch (...) {
    // The log ends with the last step that was done, whatever stopped the next one.
    if (running_) deployer_.log_metrics(running_->metrics.read(), running_->metrics.step());
    throw;
  }
  return run_.n_examples >= examples.size && !is_restored_;
}

// The rest of an epoch.
Dataset Trainer::Fit::from_here(const Dataset& examples, std::span<const int64_t> order) const {
  uint64_t seed = derive_seed(trainer_.seed_, {collate_stream, uint64_t(run_.epoch_idx)});
  Pass pass{.order = order,
            .batch_size = batching_.micro,
            .batches_per_step = batching_.accumulate,
            .seed = seed,
            .collate = trainer_.collate_};
  // A run that goes on with batches of another size may be between two of them.
  if (run_.n_examples % (batching_.micro * batching_.accumulate) == 0)
    pass.first_batch = run_.n_examples / batching_.micro;
  else
    pass.order = order.subspan(size_t(run_.n_examples));
  return with_lookahead(examples, pass, deployer_.mesh());
}

void Trainer::Fit::train_step(const Dataset& examples, std::span<const int64_t> indices) {
  StepProfile::Step profiled(profile_, trainer_.state_.step);
  Running now{trainer_.run_step(examples, indices, batching_.micro),
              {indices.begin(), indices.end()}};
  // Read now that the next step is under way: nothing waits for the one just issued.
  finish_step(examples);
  if (now.metrics.is_left_out() && trainer_.leaves_out_nonfinite_) {
    handle_left_out(examples, now);
  } else {
    n_skipped_ = 0;
    running_.emplace(std::move(now));
  }
}

void Trainer::Fit::log(PendingMetrics& metrics) {
  shown_ = metrics.read();
  deployer_.log_metrics(trainer_.meter_->with_measured(shown_, metrics.step()), metrics.step());
}

void Trainer::Fit::finish_step(const Dataset& examples) {
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

// What is to be done each k steps, and what else may have come.
void Trainer::Fit::after_step(const Dataset& examples) {
  int64_t step = trainer_.state_.step;
  bool is_new = std::exchange(handled_step_, step) != step;
  auto is_due = [&](const std::optional<int64_t>& every_k) {
    return is_new && every_k && step % *every_k == 0;
  };
  // The evaluation after the epoch is the same.
  bool evaluates = is_due(options_.eval_every_k_steps) && run_.n_examples < run_.epoch_size;
  bool saves = is_due(options_.save_ckpt_every_k_steps);
  writing([&] { deployer_.checkpoints().check(); });
  auto reason = stopping_.after_step();
  if (!evaluates && !saves && !reason) return;
  finish_step(examples);  // nothing is saved that has gone wrong
  std::vector<std::string> names;
  if (saves) names.push_back("step_" + std::to_string(step));
  if (evaluates)
    evaluate_and_save(names, false);
  else
    save(names, false, options_.save_in_background);
  if (reason) stop(*reason);
}

void Trainer::Fit::handle_left_out(const Dataset& examples, Running& left_out) {
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

void Trainer::Fit::keep_batch(const Dataset& examples, const Running& running) {
  if (deployer_.workdir().empty()) return;
  int64_t step = running.metrics.step();
  std::string path =
      deployer_.workdir() + "/nonfinite_step_" + std::to_string(step) + ".safetensors";
  try {
    Tree batch = make_batch(examples, running.indices, trainer_.collate_, trainer_.device_,
                            deployer_.mesh());
    if (deployer_.mesh()->world().size() == 1 || !named_tensors(batch).empty())
      save_tree(path, batch);
    deployer_.log_info("The batch whose loss or gradients are not finite is " + path, "", step);
  } catch (const Interrupted&) {
    throw;
  } catch (const std::exception& error) {
    deployer_.log_info(std::string("The batch could not be kept: ") + error.what(), "", step);
  }
}

void Trainer::Fit::restore() {
  require(!last_saved_.empty(), "training: the loss or the gradients of step ",
          trainer_.state_.step,
          " are not finite, and this run has not written a checkpoint yet to go back to");
  require(n_restores_++ < most_restores, "training: the loss or the gradients of step ",
          trainer_.state_.step, " are not finite, after the run went back to the checkpoint ",
          last_saved_, " ", most_restores, " times");
  auto left_out = run_.left_out_batches;
  left_out.emplace(run_.epoch_idx, run_.n_examples);
  auto checkpoint = deployer_.load_last_ckpt();
  require(checkpoint.has_value(), "training: the checkpoint ", last_saved_, " is gone");
  trainer_.restore(*checkpoint);
  run_.left_out_batches = left_out;
  handled_step_ = trainer_.state_.step;
  is_restored_ = true;
}

void Trainer::Fit::evaluate_and_save(std::vector<std::string> names, bool is_epoch_done) {
  if (options_.eval_examples) {
    std::string desc = "Evaluating (epoch " + std::to_string(run_.epoch_idx) + " / " +
                       std::to_string(options_.n_epochs) + ")";
    bool is_epoch = run_.n_examples >= run_.epoch_size;
    run_.metrics = trainer_.evaluate(options_, desc,
                                     is_epoch ? "epoch" + std::to_string(run_.epoch_idx)
                                              : "step" + std::to_string(trainer_.state_.step));
    std::vector<std::string> best = note_best(run_.metrics);
    names.insert(names.begin(), best.begin(), best.end());
    if (options_.early_stopping) note_for_early_stopping(run_.metrics);
  }
  save(names, is_epoch_done, options_.save_in_background);
}

// The checkpoints that these results are worth.
std::vector<std::string> Trainer::Fit::note_best(const std::map<std::string, double>& results) {
  std::vector<std::string> names;
  auto note = [&](const std::vector<std::string>& metrics, std::map<std::string, double>& best,
                  const std::string& kind, auto is_better) {
    for (const std::string& metric : metrics) {
      auto found = results.find(metric);
      if (found == results.end()) fail_without(metric, results);
      auto [place, is_first] = best.try_emplace(metric, found->second);
      if (std::isnan(found->second)) {
        if (is_first) best.erase(place);  // any number is better
        continue;
      }
      if (!is_first && !is_better(found->second, place->second)) continue;
      place->second = found->second;
      names.push_back(kind + metric);
    }
  };
  note(options_.save_argmin_ckpt_by_metrics, run_.min_metrics, "min_", std::less());
  note(options_.save_argmax_ckpt_by_metrics, run_.max_metrics, "max_", std::greater());
  return names;
}

void Trainer::Fit::note_for_early_stopping(const std::map<std::string, double>& results) {
  const EarlyStopping& rule = *options_.early_stopping;
  auto found = results.find(rule.metric);
  if (found == results.end()) fail_without(rule.metric, results);
  double value = found->second, sign = rule.maximize ? -1 : 1;
  auto& best = run_.early_stopping_best;
  if (std::isfinite(value) && (!best || sign * (*best - value) > rule.min_delta)) {
    best = value;
    run_.n_without_improvement = 0;
  } else if (++run_.n_without_improvement >= rule.patience) {
    is_over_ = true;
    std::ostringstream text;
    text << "Ended early: " << rule.metric << " has not got better than " << best.value_or(value)
         << " in " << run_.n_without_improvement << " evaluations";
    deployer_.log_info(text.str(), "", trainer_.state_.step);
  }
}

void Trainer::Fit::stop(const Stopping::Reason& reason) {
  std::string step = std::to_string(trainer_.state_.step);
  is_over_ = true;
  if (reason.signal == 0) return deployer_.log_info("The time is over at step " + step);
  std::string text = std::string("ended after step ") + step + " by signal " +
                     std::to_string(reason.signal) + " (" + strsignal(reason.signal) + ")";
  if (!deployer_.workdir().empty()) {
    save({"last"}, false, false);
    text += "; " + deployer_.ckpts_dir() + "/last is where it goes on";
  }
  throw Stopped(reason.signal, text);
}

void Trainer::Fit::save(const std::vector<std::string>& names, bool is_epoch_done,
                        bool in_background) {
  if (names.empty()) return;
  std::string ckpts = deployer_.ckpts_dir();
  SaveCheckpointOptions options;
  options.float_dtype = options_.save_float_dtype;
  options.in_background = in_background;
  options.pointer = ckpts + "/last_ckpt.txt";
  for (size_t i = 0; i + 1 < names.size(); ++i) options.also.push_back(ckpts + "/" + names[i]);
  options.keep_last_k = options_.keep_last_k_ckpts;
  // By itself: a failure of the one before must not keep some processes from this one.
  writing([&] { deployer_.checkpoints().wait(); });
  writing([&] {
    deployer_.save_ckpt(ckpts + "/" + names.back(),
                        trainer_.checkpoint(options_.save_opt_states, is_epoch_done), options);
    last_saved_ = names.back();
    n_restores_ = 0;
  });
}

void Trainer::Fit::writing(const std::function<void()>& write) {
  if (options_.on_save_error == OnSaveError::stop) return write();
  try {
    write();
  } catch (const Interrupted&) {
    throw;
  } catch (const Error& error) {
    deployer_.log_info(
        std::string("No checkpoint was written, and training goes on: ") + error.what(), "",
        trainer_.state_.step);
  }
}

}  // namespace redco
