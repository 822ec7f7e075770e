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

/// Threads that make batches ahead of their use. Each has a Lua state of its own, to which
/// collate_fn and the examples are copied while it does nothing. The threads end with the last
/// reference to the object and its datasets.
class CollateWorkers : public std::enable_shared_from_this<CollateWorkers> {
 public:
  /// Errors begin with `what`. An Error says what of collate_fn cannot be copied.
  CollateWorkers(const Ref& collate_fn, int64_t num_workers, int64_t prefetch_factor,
                 const std::string& what);
  ~CollateWorkers();

  /// The examples as the engine sees them, whose batches the workers make, at most num_workers *
  /// prefetch_factor at a time. An error of a worker is that of the `collate` of its batch. The
  /// examples are copied when the first batch is asked for.
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
  std::mutex mutex_;  // of all below
  std::condition_variable to_workers_, from_workers_;
  std::deque<std::shared_ptr<Batch>> waiting_;
  int64_t n_running_ = 0;
  bool is_paused_ = false, is_ending_ = false;
};

}  // namespace redco::lua
