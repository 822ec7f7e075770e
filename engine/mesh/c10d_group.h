#pragma once

#include "backend.h"
#include "peers.h"

#include <redco/group.h>

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace redco {

/// What a group of two or more is made of while its processes are connected.
struct GroupParts {
  std::string name;
  Backend backend;
  int64_t rank = 0;
  std::vector<int64_t> processes;  ///< the rank in the run of each rank of this group
  std::chrono::milliseconds timeout = {};
  bool has_core = false;  ///< whether each process of this host has a core of its own
  Peers* peers = nullptr;
  size_t number = 0;  ///< what `peers` counts its collectives under
};

/// A group's connection, made when it is first used and anew after `disconnect`.
class GroupLine {
 public:
  /// All processes of the group call `connect` together; it gives the parts a backend and a number.
  GroupLine(GroupParts parts, std::function<void(GroupParts&)> connect)
      : unconnected_(std::move(parts)), connect_(std::move(connect)) {}
  ~GroupLine();

  /// As they are without a connection.
  const GroupParts& unconnected() const { return unconnected_; }
  std::shared_ptr<const GroupParts> parts();
  /// Remembers what runs over the connection.
  void add(const c10::intrusive_ptr<c10d::Work>& work);
  /// Leaves the connection as it is, with what still runs over it, until the process ends.
  void disconnect();

 private:
  const GroupParts unconnected_;
  const std::function<void(GroupParts&)> connect_;
  std::mutex mutex_;
  std::shared_ptr<const GroupParts> connected_;
  std::vector<c10::intrusive_ptr<c10d::Work>> in_flight_;  // and some that have landed
};

/// Waits for the work of the group's collective of this number, called `what`. Throws Error when a
/// process failed or is gone, when the time is up, and Interrupted.
void await(c10d::Work& work, const What& what, int64_t number, const GroupParts& group);

/// A group whose collectives run in a backend of c10d.
std::unique_ptr<Group> make_c10d_group(std::shared_ptr<GroupLine> line);

}  // namespace redco
