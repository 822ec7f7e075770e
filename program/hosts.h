#pragma once

#include "host_board.h"
#include "host_lead.h"

#include <redco/detail/run_store.h>
#include <redco/mesh.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace redco {

/// The launchers of a run, one per host, as seen by one of them. They communicate through a store
/// that host 0 serves, and agree there when to start workers and when the run is over. A thread
/// does all communication, so that no call here blocks on it.
class Hosts {
 public:
  /// One start of the workers on all participating hosts.
  struct Attempt {
    int64_t number = 0;
    std::string run;         ///< the run's name for its workers
    int64_t first_rank = 0;  ///< of this host's workers
    int64_t size = 0;        ///< number of workers on all hosts
  };
  struct News {
    std::optional<Attempt> attempt;            ///< the attempt that this host takes part in
    std::optional<RunStore::Failure> failure;  ///< the first of the attempt
    std::optional<HostBoard::End> end;         ///< of the run
    std::string lost;                          ///< why the store cannot be reached; empty if it can
  };

  /// `place`: the launcher's rank among the launchers, and the address of their store; with one
  /// host the store is reachable only from it. Throws UsageError if the address is missing.
  Hosts(const Processes& place, int64_t n_workers, const Restarts& restarts);
  /// Announces that this host leaves. Host 0 waits until the others have left, which may still need
  /// the reason of the end; the others wait seconds for the store.
  ~Hosts();
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;

  /// Becomes readable when there is news.
  int descriptor() const { return descriptor_; }
  News news();

  /// This host has no workers, and will take part in the next attempt.
  void join();
  /// Reports a failed worker of the attempt. The first failure on any host counts.
  void note_failure(const RunStore::Failure& failure);
  /// All of this host's workers have finished. The run is over once all hosts have.
  void finish();
  /// Ends the run on all hosts.
  void end(const HostBoard::End& end);
  /// Reconnects to the store after a lost connection.
  void reach_again();

  /// The address of the store for workers.
  const std::string& address() const { return place_.store_address; }
  int64_t port() const { return place_.store_port; }
  const std::string& secret() const { return secret_; }

 private:
  struct Link;
  class Talk;
  void start(std::unique_ptr<RunStore> store, std::chrono::seconds limit);

  Processes place_;
  std::string secret_;
  int64_t n_workers_;
  Restarts restarts_;
  int descriptor_;
  std::shared_ptr<Link> link_;
};

}  // namespace redco
