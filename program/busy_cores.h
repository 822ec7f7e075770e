// Prints a notice if other programs use the cores, because fewer threads would then be faster.

#pragma once

namespace redco {

/// Starts a thread that looks every few seconds how long the threads of this process have waited
/// for a core, and prints a notice the first time that they have waited for long. It does nothing
/// if operators use one thread.
void watch_for_busy_cores();

}  // namespace redco
