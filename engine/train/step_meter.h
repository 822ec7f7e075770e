#pragma once

#include "flop_counter.h"

#include <redco/tree.h>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

namespace redco {

/// What the steps of a training loop cost this process. A step lasts until the next one starts, or
/// the loop stops: on a GPU, which works on while the next step is issued, that is the time that
/// counts once the loop runs. Nothing is sent to other processes, and no step waits for it.
///
/// The metrics of a step:
///   step_seconds, examples_per_second: of the whole batch
///   tokens_per_second: elements of the batches' `input_ids`, where they have some
///   collate_seconds: until batches were there      collective_seconds: see group.h; none on a GPU
///   mfu: model FLOPs utilization (arXiv 2204.02311): what this process did of the model's
///     floating-point operations, counted in the first step, by what its device could have done.
///     Causal attention counts in full, as in that paper, though a kernel may skip half of it
///   gathered_bytes: what this process sent because operators had their arguments gathered
///     (moves.h); none where it is alone
///   memory_bytes, peak_memory_bytes: of the process; on a GPU of its tensors, and the most since
///     the start of the process or torch.cuda.reset_peak_memory_stats
///   reserved_memory_bytes: on a GPU, what its allocator took from the driver
class StepMeter {
 public:
  /// The device that trains, the type in which it does, and whether no other process does. One that
  /// is not `enabled` does nothing.
  StepMeter(bool enabled, c10::Device device, c10::ScalarType dtype, bool is_alone);

  /// The step of this number, of so many examples, starts, and the one before ends. What is
  /// returned lives as long as this process works on it.
  std::unique_ptr<FlopCounter> start(int64_t step, int64_t n_examples);

  /// Times `collate`, and counts the tokens of its batch.
  template <class Function>
  Tree collated(const Function& collate) {
    auto from = clock::now();
    Tree batch = collate();
    collate_ += clock::now() - from;
    count_tokens(batch);
    return batch;
  }

  /// `metrics` of a step and what was measured of it: of the one that ended last, or of the one
  /// that runs, which ends by that.
  std::map<std::string, double> with_measured(std::map<std::string, double> metrics, int64_t step);

 private:
  using clock = std::chrono::steady_clock;

  void end();
  void count_tokens(const Tree& batch);
  void add_memory();

  bool enabled_;
  c10::Device device_;
  c10::ScalarType dtype_;
  bool is_alone_;

  std::optional<int64_t> running_;  // the step
  clock::time_point start_;
  clock::duration collate_{};
  double in_collectives_ = 0;   // at the start
  int64_t gathered_bytes_ = 0;  // at the start
  int64_t n_examples_ = 0;
  int64_t n_tokens_ = 0;

  double flops_ = 0;                      // of the first step
  std::optional<double> flops_per_unit_;  // a token's, or an example's where there are none
  std::optional<double> peak_;            // of the device, in FLOPs a second
  std::map<std::string, double> metrics_;
};

}  // namespace redco
