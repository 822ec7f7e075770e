// The order in which a stage of a pipeline takes its turns in a training step.

#pragma once

#include <redco/export.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace redco::train {

/// The forward pass of a micro-batch, or its backward pass, on one stage.
struct Turn {
  size_t micro_batch;
  bool is_backward;
  bool operator==(const Turn&) const = default;
};

/// The turns of a stage by 1F1B (arXiv 2104.04473, 2.2.1): as many forward passes as there are
/// stages behind it, then forward and backward in turn, so that it keeps the activations of
/// n_stages - stage micro-batches at most. If all take equally long, a stage waits for
/// (n_stages - 1) / (n_batches + n_stages - 1) of the time. One stage runs each micro-batch to its
/// end.
REDCO_API std::vector<Turn> turns_of(int64_t stage, int64_t n_stages, size_t n_batches);

}  // namespace redco::train
