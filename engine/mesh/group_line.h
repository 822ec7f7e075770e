#pragma once

#include "await.h"
#include "device_wait.h"

#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace redco::mesh {

/// A group's connection, made at its first use and remade after `disconnect`.
class GroupLine {
 public:
  /// All processes of the group call `connect` together; it sets the backend and number of the
  /// parts.
  GroupLine(GroupParts parts, std::function<void(GroupParts&)> connect)
      : unconnected_(std::move(parts)), connect_(std::move(connect)) {}
  ~GroupLine();

  /// The parts without a connection.
  const GroupParts& unconnected() const { return unconnected_; }
  std::shared_ptr<const GroupParts> parts();
  /// Tracks work that runs over the connection.
  void add(const Started& started);
  /// Forgets work that has ended, and with it the tensors that it sent.
  void remove(const Started& started);
  /// Abandons the connection and the work that runs over it, which are kept until the process ends.
  void disconnect();

 private:
  const GroupParts unconnected_;
  const std::function<void(GroupParts&)> connect_;
  std::mutex mutex_;
  std::shared_ptr<const GroupParts> connected_;
  // On a stream only the newest work, because it ends last.
  std::vector<c10::intrusive_ptr<c10d::Work>> in_flight_;
  NewestOnStream newest_;
};

}  // namespace redco::mesh
