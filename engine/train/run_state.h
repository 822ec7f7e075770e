#pragma once

#include <redco/trainer.h>
#include <redco/tree.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

namespace redco::train {

/// The state of a run except its tensors, as stored in `info.json` to resume from.
struct RunState {
  int64_t epoch_idx = 0;                                   ///< the current epoch
  int64_t epoch_size = 0;                                  ///< its number of examples
  int64_t n_examples = 0;                                  ///< examples of it already processed
  std::map<std::string, double> metrics;                   ///< of the last evaluation
  std::map<std::string, double> min_metrics, max_metrics;  ///< the best so far
  /// The evaluations of these, `epoch 3` or `step 120`, by `min_` or `max_` and the metric.
  std::map<std::string, std::string> best_places;
  std::optional<double> early_stopping_best;
  int64_t n_without_improvement = 0;  ///< evaluations, for early stopping
  /// Whether the evaluation after the last step is still to be made, since the run ended in it.
  bool is_evaluation_due = false;
  /// Batches to skip, by their epoch and the number of examples before them in it.
  std::set<std::pair<int64_t, int64_t>> left_out_batches;
};

/// Converts the state to fields of info.json. `is_epoch_done`: the epoch is trained and evaluated,
/// and the run resumes with the next one.
Tree::Dict to_info(const RunState& state, bool is_epoch_done);

/// Reads the state from info.json. Missing fields have their initial values; info with an epoch but
/// no position in it means that the epoch is done. Throws Error for fields of the wrong kind.
RunState run_state_of(const Tree& info);

/// The Trainer's fields in info.json; `otherwise` if they are missing.
int64_t step_of(const Tree& info, int64_t otherwise);
std::optional<LossScale> loss_scale_of(const Tree& info, std::optional<LossScale> otherwise);

}  // namespace redco::train
