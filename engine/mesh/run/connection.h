#pragma once

#include "../backend.h"
#include "peers.h"

#include <redco/detail/run_store.h>
#include <redco/mesh.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace redco::mesh {

/// The part of a store whose keys begin with `prefix`.
c10::intrusive_ptr<c10d::Store> with_prefix(const c10::intrusive_ptr<c10d::Store>& store,
                                            const std::string& prefix);

/// The connection of this process to the others of its run. It is never destroyed: others may need
/// the store that this process hosts after its last mesh is gone. At exit the heartbeats stop, and
/// the backends on streams are shut down.
class Connection {
 public:
  /// Connections that must be remade after a failed turn (redco/detail/turns.h).
  class Lines {
   public:
    virtual ~Lines() = default;
    virtual void disconnect() = 0;
  };

  Connection(const Processes& processes, std::chrono::milliseconds timeout);
  static Connection& of(const Processes& processes, std::chrono::milliseconds timeout);
  /// Calls `body` for every existing connection.
  static void for_each(const std::function<void(Connection&)>& body);

  Peers& peers() { return peers_; }
  /// A new client: an operation that waits in the store blocks all users of its client.
  std::unique_ptr<RunStore> another_client() const;
  const c10::intrusive_ptr<c10d::Store>& store() const { return store_->c10d(); }
  /// From now on this process continues after failures.
  void reconnect_after_failures() { may_reconnect_ = true; }
  /// A client for connecting the processes, which may be abandoned with the attempt when that
  /// fails.
  std::shared_ptr<RunStore> client_for_connecting();
  /// The key prefix of the next mesh. All processes make their meshes in the same order.
  std::string next_mesh();

  /// The backends that run on streams, by the processes of a group and the kind of link.
  /// Destroying one aborts it, and other processes may still receive what it sent: so they outlive
  /// their mesh, serve later ones, and are shut down when the scripts of all processes have ended.
  using Backends = std::map<std::pair<std::vector<int64_t>, LinkKind>, Backend>;
  Backends& backends() { return backends_; }

  /// How often the run was disconnected; the same on all its processes.
  int64_t reconnects() const { return reconnects_; }
  void add(Lines* lines);
  void remove(Lines* lines);
  /// Disconnects. All processes call it while none is in a collective. Meshes count from 0 again,
  /// because some processes may have made more of them than others.
  void disconnect();

 private:
  struct All;
  static All& all();
  static void end_all();
  void end();

  const Processes processes_;
  const std::chrono::milliseconds timeout_;
  std::shared_ptr<RunStore> store_;
  Peers peers_;
  bool may_reconnect_ = false;
  std::shared_ptr<RunStore> connecting_;
  Backends backends_;
  int64_t n_meshes_ = 0;
  std::atomic<int64_t> reconnects_ = 0;
  std::mutex mutex_;
  std::set<Lines*> lines_;
};

}  // namespace redco::mesh
