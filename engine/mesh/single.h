#pragma once

#include <redco/group.h>

namespace redco {

/// The group of one process. Its collectives are answered at once, and none is counted.
std::unique_ptr<Group> make_single(std::string name);

}  // namespace redco
