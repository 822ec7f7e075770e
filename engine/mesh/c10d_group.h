#pragma once

#include "group_line.h"

#include <redco/group.h>

#include <memory>

namespace redco::mesh {

/// Makes a group whose collectives run in a c10d backend.
std::unique_ptr<Group> make_c10d_group(std::shared_ptr<GroupLine> line);

}  // namespace redco::mesh
