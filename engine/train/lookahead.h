#pragma once

#include <redco/dataset.h>
#include <redco/mesh.h>

#include <cstdint>
#include <memory>
#include <span>

namespace redco {

/// A pass over a dataset: its batches are the examples of `order`, in pieces of `batch_size`.
struct Pass {
  std::span<const int64_t> order;
  int64_t batch_size;
  int64_t batches_per_step = 1;
  int64_t first_batch = 0;  ///< where the pass starts
  uint64_t seed;  ///< of what collate functions draw
  Collate collate;
};

/// The dataset for one pass, in which `make_batch` asks for the batches in their order: `prefetch`
/// is told what comes, and each batch has a generator of its own, that of its step, whose numbers
/// depend neither on threads nor on the micro-batches; a batch that is asked for again draws the
/// same. `order` must live as long.
Dataset with_lookahead(const Dataset& examples, const Pass& pass,
                       const std::shared_ptr<Mesh>& mesh);

}  // namespace redco
