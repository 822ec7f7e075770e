#pragma once

#include <redco/dataset.h>
#include <redco/mesh.h>

#include <cstdint>
#include <memory>
#include <span>

namespace redco::train {

/// A pass over a dataset: batches of `batch_size` consecutive entries of `order`.
struct Pass {
  std::span<const int64_t> order;
  int64_t batch_size;
  int64_t batches_per_step = 1;
  int64_t first_batch = 0;  ///< the first batch of the pass
  uint64_t seed;            ///< of the random numbers that collate functions draw
  Collate collate;
};

/// Wraps a dataset for one pass, in which `make_batch` requests the batches in order: `prefetch`
/// receives the next batches in advance, and each batch gets a generator from its step, whose
/// numbers depend neither on threads nor on the micro-batch size; a batch requested again gets the
/// same numbers. `order` must outlive the result.
Dataset with_lookahead(const Dataset& examples, const Pass& pass,
                       const std::shared_ptr<Mesh>& mesh);

}  // namespace redco::train
