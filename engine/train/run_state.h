#pragma once

#include <redco/trainer.h>
#include <redco/tree.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

namespace redco {

/// Where a run is, beside its tensors: what `info.json` says for it to go on from there.
struct RunState {
  int64_t epoch_idx = 0;                                   ///< the epoch under way
  int64_t epoch_size = 0;                                  ///< its examples
  int64_t n_examples = 0;                                  ///< those of them that are done with
  std::map<std::string, double> metrics;                   ///< of the last evaluation
  std::map<std::string, double> min_metrics, max_metrics;  ///< the best so far
  std::optional<double> early_stopping_best;
  int64_t n_without_improvement = 0;  ///< evaluations, for early stopping
  /// Batches that are not trained on, by their epoch and the examples before them in it.
  std::set<std::pair<int64_t, int64_t>> left_out_batches;
};

/// As fields of info.json. `is_epoch_done`: and evaluated; it goes on with the next one.
Tree::Dict to_info(const RunState& state, bool is_epoch_done);

/// Fields that are missing are as at the start; info that names an epoch and nothing of a place in
/// it means that this epoch is done. Throws Error for fields of the wrong kind.
RunState run_state_of(const Tree& info);

/// The fields of a Trainer's own in info.json; `otherwise` where they are missing.
int64_t step_of(const Tree& info, int64_t otherwise);
std::optional<LossScale> loss_scale_of(const Tree& info, std::optional<LossScale> otherwise);

}  // namespace redco
