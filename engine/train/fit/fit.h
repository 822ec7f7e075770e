#pragma once

#include "../batches/collate_watch.h"
#include "../measures/pending_metrics.h"
#include "../measures/step_profile.h"
#include "../run_state.h"
#include "../step/train_step.h"
#include "stopping.h"

#include <redco/trainer.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace redco::train {

/// One call of `fit`: repeats a training step, with evaluations and checkpoints in between.
class Fit {
 public:
  /// `run` is the position from which it goes on, and which it advances. All must outlive it.
  Fit(TrainStep& step, RunState& run, const FitOptions& options);

  void run();
  /// Trains one pass over the examples; returns false if it ended early.
  bool train_epoch(const Dataset& examples, const std::string& desc);

 private:
  void check_options() const;
  bool saves() const;
  Dataset examples_of_epoch() const;
  bool is_done() const { return is_over_ || is_at_last_step(); }
  bool is_at_last_step() const {
    return options_.max_steps && step_.state().step >= *options_.max_steps;
  }

  // A step whose metrics are being copied, and its examples.
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
  std::vector<std::string> evaluate();
  void evaluate_and_save(std::vector<std::string> names, bool is_epoch_done);
  void check_evaluation();
  void check_names(const std::map<std::string, double>& results) const;
  bool is_tracked(const std::string& metric, bool is_lower_better) const;

  // The metrics that an evaluation improved, and the checkpoints of the best metrics.
  struct Improved {
    std::set<std::string> metrics;
    std::vector<std::string> ckpts;
  };
  Improved note_best(const std::map<std::string, double>& results, const std::string& place);
  void note_for_early_stopping(const std::map<std::string, double>& results);
  void call(const Hook& hook, const char* name, const std::function<Metrics()>& metrics,
            const std::vector<std::string>& ckpt_names = {});
  void call_on_step();
  void stop(const Stopping::Reason& reason);
  void save_or_stop(std::vector<std::string> names, bool is_epoch_done);
  std::string end_by(int signal) const;
  void give_up(int signal);
  void save(const std::vector<std::string>& names, bool is_epoch_done, bool in_background);
  void write(const std::vector<std::string>& names, bool is_epoch_done, bool in_background);
  void writing(const std::function<void()>& write);
  void logging(const std::function<void()>& write);
  void log_summary();
  std::string best_metrics() const;

  TrainStep& step_;
  RunState& run_;
  const FitOptions& options_;
  Deployer& deployer_;
  Batching batching_;
  Stopping stopping_;
  mutable CollateWatch watch_;
  StepProfile profile_;
  // The progress of this call.
  struct Done {
    std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
    int64_t first_step = 0;
    int64_t n_epochs = 0;
    int64_t n_examples = 0;
    std::chrono::duration<double> in_epochs{};  // without the evaluations after them
  };
  Done done_;
  std::optional<Running> running_;
  int64_t hooked_step_;  // the last step for which on_step was called
  std::map<std::string, double> shown_;
  std::string last_saved_;    // the newest checkpoint of this run
  int64_t n_restores_ = 0;    // since last_saved_
  int64_t n_skipped_ = 0;     // consecutive
  int64_t handled_step_;      // the last step after which periodic actions were checked
  int64_t n_unlogged_ = 0;    // metrics and results that could not be written
  bool is_over_ = false;      // out of time, or stopped early
  bool is_restored_ = false;  // the run went back to a checkpoint
};

}  // namespace redco::train
