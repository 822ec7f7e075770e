#pragma once

#include <redco/detail/run_secret.h>
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

namespace store {
class StoreServer;
}

/// The store through which the processes of a run connect, and which records the first failure for
/// all. Only processes with the run's secret can reach it.
class REDCO_API RunStore {
 public:
  struct Failure {
    int64_t rank = 0;
    std::string text;
    int exit_code = 1;  ///< the exit code of the process
  };

  /// Opens a store on a free port of this host, for processes of this host that are given its
  /// secret.
  static std::unique_ptr<RunStore> open(const std::string& secret = random_secret());
  /// Opens or connects to the store that `processes` name. Throws Error if that times out,
  /// UsageError if they name none.
  static std::unique_ptr<RunStore> connect(const Processes& processes,
                                           std::chrono::milliseconds timeout);
  ~RunStore();
  /// Throws UsageError if `processes` have no store address.
  static void require_address(const Processes& processes);
  /// The part of the store reserved for this run and attempt.
  std::unique_ptr<RunStore> part(const std::string& run, int64_t attempt) const;

  const std::string& address() const { return address_; }
  int64_t port() const { return port_; }
  const std::string& secret() const { return secret_; }
  const c10::intrusive_ptr<c10d::Store>& c10d() const { return store_; }

  /// Records a failure unless there is one already: later failures are consequences of the first.
  void note_failure(const Failure& failure);
  /// The recorded failure. Its text has no control characters, and its exit code is not 0.
  std::optional<Failure> failure();

 private:
  RunStore(const Processes& processes, std::chrono::milliseconds timeout, bool is_local);
  RunStore(const RunStore& whole, const std::string& run, int64_t attempt);

  std::string address_;
  int64_t port_ = 0;
  std::string secret_;
  std::shared_ptr<store::StoreServer> server_;  // null: another process hosts it
  c10::intrusive_ptr<c10d::Store> whole_;
  c10::intrusive_ptr<c10d::Store> store_;  // this run's part
};

}  // namespace redco
