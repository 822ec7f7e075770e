#pragma once

#include "host_lead.h"

#include <redco/mesh.h>

#include <cstdint>
#include <string>
#include <vector>

namespace redco {

/// Runs this program with the words of `command` in `n_workers` processes on this host.
/// torchrun's variables connect them to each other and to those of the run's other launchers;
/// `place` is this launcher's rank among these.
/// Prints each line of output with the prefix `[rank] `. If a process fails, all others are
/// stopped, its error is printed last, and the run restarts as `restarts` allows.
///
/// Forwards SIGTERM, SIGUSR1, SIGHUP and SIGINT to the workers of all hosts, which ends the run.
/// Only after SIGINT are workers killed that do not end in time.
///
/// With a shared prompt, SIGINT ends the workers' current chunk, not the workers.
///
/// Returns the exit code of the run: that of the first failed worker, or 128 + the signal that
/// ended it. No worker outlives this process. Throws Error if workers cannot be started.
/// Call it before any thread is started.
int launch(const Processes& place, int64_t n_workers, const Restarts& restarts,
           const std::vector<std::string>& command, bool share_prompt);

}  // namespace redco
