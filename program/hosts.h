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

/// The launchers of a run, one on each host, as one of them sees them. They meet at a store that
/// the first one keeps, and agree there when to start workers and when the run is over. A thread
/// talks to the store, so that nothing here waits for it.
class Hosts {
 public:
  /// One start of workers on all hosts that have come.
  struct Attempt {
    int64_t number = 0;
    std::string run;         ///< what its workers call it
    int64_t first_rank = 0;  ///< of this host's workers
    int64_t size = 0;        ///< workers of all hosts
  };
  struct News {
    std::optional<Attempt> attempt;            ///< which this host takes part in
    std::optional<RunStore::Failure> failure;  ///< the attempt's first
    std::optional<HostBoard::End> end;         ///< of the run
    std::string lost;                          ///< why the store cannot be reached any more
  };

  /// `place` tells the launchers' own numbers and where their store is; of one host it is where
  /// only its own processes reach it. Throws UsageError when it does not tell.
  Hosts(const Processes& place, int64_t n_workers, const Restarts& restarts);
  /// Tells the others that this host leaves. The first one waits until they have, some seconds at
  /// most: they may still want to read why the run has ended.
  ~Hosts();
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;

  /// Becomes readable with news.
  int descriptor() const { return descriptor_; }
  News news();

  /// This host has no workers, and takes part in the next attempt.
  void join();
  /// A worker of the attempt failed. The first failure of all hosts counts.
  void note_failure(const RunStore::Failure& failure);
  /// All of this host's workers did what they had to. The run is over when all hosts say so.
  void finish();
  /// The run ends, on all hosts.
  void end(const HostBoard::End& end);
  /// Connects anew to a store that was lost.
  void reach_again();

  /// Where workers reach the store.
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
