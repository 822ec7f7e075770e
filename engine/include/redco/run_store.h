#pragma once

#include <redco/export.h>
#include <redco/mesh.h>

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace c10d {
class Store;
}

namespace redco {

/// The store through which the processes of a run meet, and where the first failure is written
/// down for all.
class REDCO_API RunStore {
 public:
  struct Failure {
    int64_t rank = 0;
    std::string text;
    int exit_code = 1;  ///< what the process ends with
  };

  /// Opens a store at a free port of this host, for processes on this host.
  static std::unique_ptr<RunStore> open();
  /// Opens or reaches the one that `processes` names. Throws Error when that takes too long,
  /// UsageError when they name none.
  static std::unique_ptr<RunStore> connect(const Processes& processes,
                                           std::chrono::milliseconds timeout);
  ~RunStore();
  /// Throws UsageError when `processes` do not tell where their store is.
  static void require_address(const Processes& processes);
  /// The part of the same store that another attempt, or run, has for itself.
  std::unique_ptr<RunStore> part(const std::string& run, int64_t attempt) const;

  int64_t port() const;
  const c10::intrusive_ptr<c10d::Store>& c10d() const { return store_; }

  /// Writes a failure down, unless there is one: what follows from the first says nothing new.
  void note_failure(const Failure& failure);
  std::optional<Failure> failure();

 private:
  RunStore(const std::string& host, const Processes& processes, std::chrono::milliseconds timeout,
           bool is_local);
  RunStore(const RunStore& whole, const std::string& run, int64_t attempt);

  c10::intrusive_ptr<c10d::Store> whole_;
  c10::intrusive_ptr<c10d::Store> store_;  // this run's part
  int64_t port_ = 0;
};

}  // namespace redco
