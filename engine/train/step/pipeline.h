// The order in which a stage of a pipeline takes its turns in a training step.

#pragma once

#include <redco/export.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace redco::train {

/// The forward pass of a micro-batch, or its backward pass, through one chunk of a stage.
struct Turn {
  size_t micro_batch;
  int64_t chunk;  ///< of the stage's own
  bool is_backward;
  bool operator==(const Turn&) const = default;
};

/// The most micro-batches that pass through a chunk before the next chunk has its turn.
size_t most_in_group(int64_t n_stages, size_t n_batches);

/// The turns of a stage. With one chunk by 1F1B (arXiv 2104.04473, 2.2.1): as many forward passes
/// as there are stages behind it, then forward and backward in turn, so that it keeps the
/// activations of n_stages - stage micro-batches at most. If all take equally long, a stage waits
/// for (n_stages - 1) / (n_batches + n_stages - 1) of the time. One stage runs each micro-batch to
/// its end.
///
/// With several chunks by interleaved 1F1B (2.2.2): groups of n_stages micro-batches pass through
/// a chunk before the next chunk has its turn, and a stage waits for (n_stages - 1) /
/// (n_batches * n_chunks + n_stages - 1) of the time. If n_stages does not divide n_batches, the
/// groups are larger: a smaller one would let all stages wait, or wait for each other forever.
REDCO_API std::vector<Turn> turns_of(int64_t stage, int64_t n_stages, int64_t n_chunks,
                                     size_t n_batches);

}  // namespace redco::train
