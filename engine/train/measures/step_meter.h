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

namespace redco::train {

/// Measures the steps of a training loop on this process. A step lasts until the next one starts or
/// the loop stops; on a GPU, which runs while the next step is issued, this is the real cost in a
/// running loop. It sends nothing to other processes and does not synchronise.
///
/// The metrics of a step:
///   step_seconds, examples_per_second: of the whole batch
///   tokens_per_second: elements of the batches' `input_ids`, if they have any
///   collate_seconds: time to obtain batches      collective_seconds: see group.h; none on a GPU
///   mfu: model FLOPs utilization (arXiv 2204.02311): the model's floating-point operations on
///     this process, counted in the first step, divided by the peak of its device. Causal
///     attention counts in full, as in that paper, though a kernel may skip half of it. None where
///     the measured peak is lower than what the model reaches, as on a busy CPU
///   gathered_bytes: bytes this process sent to gather arguments of operators (moves.h); none for
///     a single process
///   memory_bytes, peak_memory_bytes: of the process; on a GPU of its tensors, and the most since
///     the start of the process or torch.cuda.reset_peak_memory_stats
///   reserved_memory_bytes: on a GPU, memory that its allocator got from the driver
class StepMeter {
 public:
  /// The device and dtype of training, and whether this is the only process. Does nothing unless
  /// `enabled`.
  StepMeter(bool enabled, c10::Device device, c10::ScalarType dtype, bool is_alone);

  /// Ends the previous step and starts step `step` of `n_examples` examples. The returned object
  /// must exist while this process works on the step.
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

  /// Adds the measurements of a step to its `metrics`. The step is the last one that ended, or the
  /// running one, which this ends.
  std::map<std::string, double> with_measured(std::map<std::string, double> metrics, int64_t step);

 private:
  using clock = std::chrono::steady_clock;

  void end();
  void add_mfu(double flops_per_second);
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
  std::optional<double> flops_per_unit_;  // per token, or per example if there are no tokens
  std::optional<double> peak_;            // of the device, in FLOP/s
  std::map<std::string, double> metrics_;
};

}  // namespace redco::train
