#pragma once

#include "await.h"
#include "device_wait.h"

#include <redco/group.h>

#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace redco {

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
  void add(const Started& started);
  /// Leaves the connection as it is, with what still runs over it, until the process ends.
  void disconnect();

 private:
  const GroupParts unconnected_;
  const std::function<void(GroupParts&)> connect_;
  std::mutex mutex_;
  std::shared_ptr<const GroupParts> connected_;
  // And some that have landed; on a stream the newest alone, which ends last.
  std::vector<c10::intrusive_ptr<c10d::Work>> in_flight_;
  NewestOnStream newest_;
};

/// A group whose collectives run in a backend of c10d.
std::unique_ptr<Group> make_c10d_group(std::shared_ptr<GroupLine> line);

}  // namespace redco
