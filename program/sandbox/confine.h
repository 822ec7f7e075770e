#pragma once

#include <cstddef>

namespace redco::sandbox {

/// Gives up what a script needs no more, until the process ends: every system call but those to
/// compute and to use the socket, and more than `memory_bytes` of further memory. A call that is
/// not allowed ends the process with SIGSYS. Throws Error if the system cannot do this.
void confine(size_t memory_bytes);

}  // namespace redco::sandbox
