#pragma once

#include "c10d_group.h"

#include <memory>
#include <string>

namespace redco {

/// Compares every collective among all processes of a mesh before it starts (REDCO_CHECK_SPMD=1): a
/// process that strays gets an error instead of a wait without end.
class SpmdCheck {
 public:
  /// `line` is one of all processes of the mesh.
  explicit SpmdCheck(std::shared_ptr<GroupLine> line) : line_(std::move(line)) {}

  /// Throws Error unless all processes are about to call the same kind of collective over the group
  /// of this name, and those of this very group with the same `what`: type and shape.
  void compare(Group::Kind kind, const std::string& what, const GroupParts& group);

 private:
  std::shared_ptr<GroupLine> line_;
  int64_t n_calls_ = 0;
};

}  // namespace redco
