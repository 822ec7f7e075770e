#pragma once

#include "backend.h"
#include "peers.h"

#include <redco/group.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace redco {

class SpmdCheck;

/// What a group of two or more is made of.
struct GroupParts {
  std::string name;
  Backend backend;
  int64_t rank = 0;
  std::vector<int64_t> processes;  ///< the rank in the run of each rank of this group
  std::chrono::milliseconds timeout = {};
  bool has_core = false;  ///< whether each process of this host has a core of its own
  Peers* peers = nullptr;
  size_t number = 0;           ///< what `peers` counts its collectives under
  SpmdCheck* check = nullptr;  ///< where given, it compares every call among the processes
};

/// Waits for the work of the group's collective of this number, called `what`. Throws Error when a
/// process failed or is gone, when the time is up, and Interrupted.
void await(c10d::Work& work, const What& what, int64_t number, const GroupParts& group);

/// A group whose collectives run in a backend of c10d.
std::unique_ptr<Group> make_c10d_group(GroupParts parts);

}  // namespace redco
