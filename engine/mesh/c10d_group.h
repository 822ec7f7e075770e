#pragma once

#include "backend.h"

#include <redco/group.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace redco {

/// What a group of two or more is made of.
struct GroupParts {
  std::string name;
  Backend backend;
  int64_t rank = 0;
  std::vector<int64_t> processes;  ///< the rank in the run of each rank of this group
  std::chrono::milliseconds timeout = {};
};

/// A group whose collectives run in a backend of c10d.
std::unique_ptr<Group> make_c10d_group(GroupParts parts);

}  // namespace redco
