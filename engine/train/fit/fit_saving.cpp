// Best metrics, and the checkpoints that `fit` writes after an evaluation, a step or a signal, and
// the return to them after a non-finite loss.

#include "../run_checkpoint.h"
#include "evaluation.h"
#include "fit.h"

#include <redco/detail/forced_stop.h>
#include <redco/error.h>
#include <redco/stop.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <sstream>
#include <string_view>
#include <utility>

namespace redco::train {

namespace {

constexpr int64_t most_restores = 2;

[[noreturn]] void fail_without(const std::string& metric,
                               const std::map<std::string, double>& results) {
  std::vector<std::string> names;
  for (const auto& [name, value] : results) names.push_back(name);
  std::string near = nearest(metric, names), all;
  for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
  fail("fit: the evaluation has no metric '", metric, "'; it has ", all,
       near.empty() ? "" : "; did you mean '" + near + "'?");
}

// Runs `write`. With OnSaveError::go_on its errors, other than an interrupt, go to `report`.
template <class Report>
void outlive(const std::function<void()>& write, OnSaveError on_error, const Report& report) {
  if (on_error == OnSaveError::stop) return write();
  try {
    write();
  } catch (const Interrupted&) {
    throw;
  } catch (const Error& error) {
    report(error);
  }
}

}  // namespace

void Fit::restore() {
  require(!last_saved_.empty(), "training: the loss or the gradients of step ", step_.state().step,
          " are not finite, and this run has not written a checkpoint yet to go back to");
  require(n_restores_++ < most_restores, "training: the loss or the gradients of step ",
          step_.state().step, " are not finite, after the run went back to the checkpoint ",
          last_saved_, " ", most_restores, " times");
  auto left_out = run_.left_out_batches;
  left_out.emplace(run_.epoch_idx, run_.n_examples);
  auto checkpoint = deployer_.load_last_ckpt({.frozen = step_.state().params});
  require(checkpoint.has_value(), "training: the checkpoint ", last_saved_, " is gone");
  train::restore(*checkpoint, step_, run_);
  run_.left_out_batches = left_out;
  handled_step_ = hooked_step_ = step_.state().step;
  is_restored_ = true;
}

// Evaluates, and calls the hooks that follow. Returns the names of the best checkpoints.
std::vector<std::string> Fit::evaluate() {
  std::vector<std::string> names;
  if (options_.eval_examples) {
    std::string desc = "Evaluating (epoch " + std::to_string(run_.epoch_idx) + " / " +
                       std::to_string(options_.n_epochs) + ")";
    int64_t step = step_.state().step;
    bool is_epoch = run_.n_examples >= run_.epoch_size;
    std::string kind = is_epoch ? "epoch" : "step";
    std::string number = std::to_string(is_epoch ? run_.epoch_idx : step);
    EvalResults results = train::evaluate(step_, options_, desc);
    run_.metrics = std::move(results.metrics);
    if (!results.outputs.is_none())
      logging([&] { deployer_.save_outputs(results.outputs, kind + number, step); });
    Improved improved = note_best(run_.metrics, kind + " " + number);
    if (!run_.metrics.empty())
      logging([&] {
        deployer_.run_log().evaluation(step, kind + number, run_.metrics, improved.metrics);
      });
    check_names(run_.metrics);
    names = improved.ckpts;
    if (options_.early_stopping) note_for_early_stopping(run_.metrics);
    step_.observe(run_.metrics);
    call(options_.on_eval, "on_eval", [this] { return run_.metrics; });
  }
  if (run_.n_examples >= run_.epoch_size)
    call(options_.on_epoch, "on_epoch", [this] { return run_.metrics; });
  return names;
}

void Fit::evaluate_and_save(std::vector<std::string> names, bool is_epoch_done) {
  const RunState run = run_;
  const Tree opt_state = step_.state().opt_state, custom_state = step_.custom_state();
  const uint64_t rng_count = deployer_.rng_count();
  const bool was_over = is_over_;
  std::vector<std::string> best;
  if (stopping_.run([&] { best = evaluate(); })) {
    names.insert(names.begin(), best.begin(), best.end());
    return save_or_stop(std::move(names), is_epoch_done);
  }
  // The run that resumes evaluates again, and so must start from the state before the evaluation.
  run_ = run;
  run_.is_evaluation_due = true;
  copy_plain_values(opt_state, step_.state().opt_state);
  step_.set_custom_state(custom_state);
  deployer_.set_rng_count(rng_count);
  is_over_ = was_over;
  save_or_stop(std::move(names), false);
}

void Fit::check_evaluation() {
  stopping_.run([&] { check_names(train::check_evaluation(step_, options_)); });
  const auto& reason = stopping_.reason();
  if (!reason) return;
  // No step has changed the state at the start of the run, so there is nothing to save.
  if (reason->signal != 0)
    throw Stopped(reason->signal, end_by(reason->signal) + ", before it has trained a step");
  stop(*reason);
}

void Fit::check_names(const std::map<std::string, double>& results) const {
  auto check = [&](const std::string& metric) {
    if (!results.contains(metric)) fail_without(metric, results);
  };
  for (const std::string& metric : options_.save_argmin_ckpt_by_metrics) check(metric);
  for (const std::string& metric : options_.save_argmax_ckpt_by_metrics) check(metric);
  if (options_.early_stopping) check(options_.early_stopping->metric);
}

// Whether the lowest (or highest) value of a metric is the best, by the options or by its name.
bool Fit::is_tracked(const std::string& metric, bool is_lower_better) const {
  const auto& asked =
      is_lower_better ? options_.save_argmin_ckpt_by_metrics : options_.save_argmax_ckpt_by_metrics;
  if (std::ranges::find(asked, metric) != asked.end()) return true;
  if (options_.early_stopping && options_.early_stopping->metric == metric)
    return options_.early_stopping->maximize != is_lower_better;
  constexpr std::string_view lower[] = {"loss", "perplexity", "error"};
  constexpr std::string_view higher[] = {"accuracy", "bleu", "chrf", "rouge", "exact_match", "f1"};
  auto is_in = [&](std::string_view part) { return metric.find(part) != std::string::npos; };
  bool is_lower = std::ranges::any_of(lower, is_in);
  return is_lower_better ? is_lower : !is_lower && std::ranges::any_of(higher, is_in);
}

Fit::Improved Fit::note_best(const std::map<std::string, double>& results,
                             const std::string& place) {
  Improved improved;
  for (bool is_lower_better : {true, false}) {
    auto& best = is_lower_better ? run_.min_metrics : run_.max_metrics;
    const auto& asked = is_lower_better ? options_.save_argmin_ckpt_by_metrics
                                        : options_.save_argmax_ckpt_by_metrics;
    for (const auto& [metric, value] : results) {
      if (std::isnan(value) || !is_tracked(metric, is_lower_better)) continue;
      auto [entry, is_first] = best.try_emplace(metric, value);
      if (!is_first && !(is_lower_better ? value < entry->second : value > entry->second)) continue;
      entry->second = value;
      std::string name = (is_lower_better ? "min_" : "max_") + metric;
      run_.best_places[name] = place;
      improved.metrics.insert(metric);
      if (std::ranges::find(asked, metric) != asked.end()) improved.ckpts.push_back(name);
    }
  }
  return improved;
}

void Fit::note_for_early_stopping(const std::map<std::string, double>& results) {
  const EarlyStopping& rule = *options_.early_stopping;
  double value = results.at(rule.metric), sign = rule.maximize ? -1 : 1;
  auto& best = run_.early_stopping_best;
  if (std::isfinite(value) && (!best || sign * (*best - value) > rule.min_delta)) {
    best = value;
    run_.n_without_improvement = 0;
  } else if (++run_.n_without_improvement >= rule.patience) {
    is_over_ = true;
    std::ostringstream text;
    text << "Ended early: " << rule.metric << " has not improved on " << best.value_or(value)
         << " in " << run_.n_without_improvement << " evaluations";
    deployer_.log_info(text.str(), "", step_.state().step);
  }
}

std::string Fit::end_by(int signal) const {
  return "ended after step " + std::to_string(step_.state().step) + " by signal " +
         std::to_string(signal) + " (" + strsignal(signal) + ")";
}

// Called on a separate thread, between two updates of the parameters. Other processes may be at
// another step.
void Fit::give_up(int signal) {
  std::string text = end_by(signal) + ", because collate_fn does not return";
  try {
    if (deployer_.mesh()->world().size() > 1) {
      text += "; of several processes none has saved";
    } else if (!deployer_.workdir().empty()) {
      write({"last"}, false, false);  // without a hook: this is not the training thread
      text += "; its checkpoint is " + deployer_.ckpts_dir() + "/last";
    }
  } catch (const std::exception& error) {
    text += std::string("; no checkpoint was written: ") + error.what();
  }
  force_stop(signal, text);
}

void Fit::stop(const Stopping::Reason& reason) {
  std::string left = run_.is_evaluation_due ? "; the run that resumes evaluates first" : "";
  if (reason.signal == 0) {
    if (!std::exchange(is_over_, true))
      deployer_.log_info("The time is over at step " + std::to_string(step_.state().step) + left);
    return;
  }
  std::string text = end_by(reason.signal);
  if (!deployer_.workdir().empty())
    text += "; its checkpoint is " + deployer_.ckpts_dir() + "/last" + left;
  throw Stopped(reason.signal, text);
}

// Saves, and ends the run if it was asked to end. A signal asks for the checkpoint `last`, too.
void Fit::save_or_stop(std::vector<std::string> names, bool is_epoch_done) {
  const auto& reason = stopping_.reason();
  bool has_signal = reason && reason->signal != 0;
  if (has_signal && !deployer_.workdir().empty() && std::ranges::find(names, "last") == names.end())
    names.push_back("last");
  save(names, is_epoch_done, options_.save_in_background && !has_signal);
  if (reason) stop(*reason);
}

void Fit::save(const std::vector<std::string>& names, bool is_epoch_done, bool in_background) {
  if (names.empty()) return;
  call(
      options_.on_save, "on_save", [this] { return run_.metrics; }, names);
  step_.read_custom_state();
  write(names, is_epoch_done, in_background);
}

void Fit::write(const std::vector<std::string>& names, bool is_epoch_done, bool in_background) {
  std::string ckpts = deployer_.ckpts_dir();
  SaveCheckpointOptions options;
  options.float_dtype = options_.save_float_dtype;
  options.in_background = in_background;
  options.pointer = ckpts + "/last_ckpt.txt";
  for (size_t i = 0; i + 1 < names.size(); ++i) options.also.push_back(ckpts + "/" + names[i]);
  options.keep_last_k = options_.keep_last_k_ckpts;
  // Waits separately, because a failed earlier save must not keep some processes from this save.
  writing([&] { deployer_.checkpoints().wait(); });
  writing([&] {
    deployer_.save_ckpt(ckpts + "/" + names.back(),
                        checkpoint_of(step_, run_,
                                      {.opt_state = options_.save_opt_states,
                                       .frozen = options_.save_frozen,
                                       .is_epoch_done = is_epoch_done}),
                        options);
    last_saved_ = names.back();
    n_restores_ = 0;
  });
}

void Fit::writing(const std::function<void()>& write) {
  outlive(write, options_.on_save_error, [&](const Error& error) {
    deployer_.log_info(
        std::string("No checkpoint was written, and training goes on: ") + error.what(), "",
        step_.state().step);
  });
}

// Like `writing`, for metrics and results of the run: shows only the first failure.
void Fit::logging(const std::function<void()>& write) {
  outlive(write, options_.on_save_error, [&](const Error& error) {
    if (n_unlogged_++ == 0)
      deployer_.log_info(
          std::string("Training goes on, but metrics or results are lost: ") + error.what(), "",
          step_.state().step);
  });
}

}  // namespace redco::train
