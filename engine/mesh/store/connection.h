#pragma once

#include "peers.h"

#include <redco/detail/run_store.h>
#include <redco/mesh.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>

namespace redco {

/// The part of a store whose keys begin with `prefix`.
c10::intrusive_ptr<c10d::Store> with_prefix(const c10::intrusive_ptr<c10d::Store>& store,
                                            const std::string& prefix);

/// How this process reaches the others of its run. It is never destroyed: others may need the store
/// that this process hosts after its last mesh is gone. When the program ends only the signs of
/// life are stopped.
class Connection {
 public:
  /// What must be connected anew after a turn that failed (redco/turns.h).
  class Lines {
   public:
    virtual ~Lines() = default;
    virtual void disconnect() = 0;
  };

  Connection(const Processes& processes, std::chrono::milliseconds timeout);
  static Connection& of(const Processes& processes, std::chrono::milliseconds timeout);
  /// Calls `body` for every connection there is.
  static void for_each(const std::function<void(Connection&)>& body);

  Peers& peers() { return peers_; }
  /// What waits in the store holds up all that use the same client.
  std::unique_ptr<RunStore> another_client() const;
  const c10::intrusive_ptr<c10d::Store>& store() const { return store_->c10d(); }
  /// From now on this process goes on after failures.
  void reconnect_after_failures() { may_reconnect_ = true; }
  /// A client for what connects the processes, and may be left behind with it when that fails.
  std::shared_ptr<RunStore> client_for_connecting();
  /// What keys of the next mesh begin with. All processes make their meshes in the same order.
  std::string next_mesh();

  /// How often the lines of the run have been cut; the same on all its processes.
  int64_t reconnects() const { return reconnects_; }
  void add(Lines* lines);
  void remove(Lines* lines);
  /// All processes do this, while none is in a collective. Meshes count from 0 again: some may have
  /// made more of them than others.
  void disconnect();

 private:
  struct All;
  static All& all();

  const Processes processes_;
  const std::chrono::milliseconds timeout_;
  std::shared_ptr<RunStore> store_;
  Peers peers_;
  bool may_reconnect_ = false;
  std::shared_ptr<RunStore> connecting_;
  int64_t n_meshes_ = 0;
  std::atomic<int64_t> reconnects_ = 0;
  std::mutex mutex_;
  std::set<Lines*> lines_;
};

}  // namespace redco
