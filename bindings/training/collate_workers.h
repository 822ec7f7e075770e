#pragma once

#include "callbacks.h"

#include <redco/dataset.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace redco::lua {

/// Threads that collate batches ahead of their use. Each has a separate Lua state; collate_fn and
/// the examples are copied to it while it is idle. The threads end with the last reference to the
/// object and its datasets.
class CollateWorkers : public std::enable_shared_from_this<CollateWorkers> {
 public:
  /// Errors begin with `what`. Throws Error if a part of collate_fn cannot be copied, and names it.
  CollateWorkers(const Ref& collate_fn, int64_t num_workers, int64_t prefetch_factor,
                 const std::string& what);
  ~CollateWorkers();

  /// Returns the engine's data set of the examples. The workers collate its batches, at most
  /// num_workers * prefetch_factor at a time. `collate` of a batch throws the error of its worker.
  /// The examples are copied at the first request of a batch.
  Dataset dataset(const Examples& examples);

 private:
  struct Batch;
  struct Worker;
  class Batches;

  void start();
  void end();
  void run(Worker& worker);
  /// Calls `body(worker)` for each worker while none of them runs.
  void await_end_of(const Batches* owner);
  template <class Body>
  void while_idle(Body body);

  std::string what_;
  int64_t n_ahead_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::mutex mutex_;  // protects all members below
  std::condition_variable to_workers_, from_workers_;
  std::deque<std::shared_ptr<Batch>> waiting_;
  int64_t n_running_ = 0;
  bool is_paused_ = false, is_ending_ = false;
};

}  // namespace redco::lua
