#pragma once

#include <redco/detail/notes.h>
#include <redco/group.h>

namespace redco::mesh {

/// Makes the group of one process. Its collectives complete at once and are not counted.
std::unique_ptr<Group> make_single(std::string name);
/// Makes the notes of one process, kept in memory.
std::unique_ptr<Notes> make_own_notes();

}  // namespace redco::mesh
