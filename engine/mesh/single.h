#pragma once

#include <redco/detail/notes.h>
#include <redco/group.h>

namespace redco {

/// The group of one process. Its collectives are answered at once, and none is counted.
std::unique_ptr<Group> make_single(std::string name);
/// Its notes: those that it left itself.
std::unique_ptr<Notes> make_own_notes();

}  // namespace redco
