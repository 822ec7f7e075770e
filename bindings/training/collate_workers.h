#pragma once

#include "callbacks.h"
#include "workers.h"

#include <redco/dataset.h>

#include <cstdint>
#include <memory>
#include <string>

namespace redco::lua {

/// Threads that collate batches ahead of their use. The examples are copied to them while they are
/// idle. The threads end with the last reference to the object and its datasets.
class CollateWorkers : public std::enable_shared_from_this<CollateWorkers> {
 public:
  /// Errors begin with `what`. Throws Error if a part of collate_fn cannot be copied, and names it.
  CollateWorkers(const Ref& collate_fn, int64_t num_workers, int64_t prefetch_factor,
                 const std::string& what);

  /// Returns the engine's data set of the examples. The workers collate its batches, at most
  /// num_workers * prefetch_factor at a time. `collate` of a batch throws the error of its worker.
  /// The examples are copied at the first request of a batch.
  Dataset dataset(const Examples& examples);

 private:
  struct Batch;
  class Batches;

  Workers workers_;
  int64_t n_ahead_;
};

}  // namespace redco::lua
