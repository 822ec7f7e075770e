#pragma once

#include "host_lead.h"

#include <redco/mesh.h>

#include <cstdint>
#include <string>
#include <vector>

namespace redco {

/// Runs `command` in `n_workers` processes of this host, which find each other, and those that the
/// launchers of the run's other hosts start, by torchrun's variables; `place` is this launcher's
/// among those. Each line they write comes out with `[rank] ` before it. When one fails all others
/// are stopped, its error is shown last, and the run starts again as often as `restarts` says.
///
/// SIGTERM, SIGUSR1, SIGHUP and SIGINT go on to the workers of all hosts, and end the run; only
/// after SIGINT are those that take their time killed.
///
/// Where they share a prompt SIGINT ends what they do at it, and not them.
///
/// Returns the exit code of the run: that of the first worker that failed, 128 + the signal for one
/// that a signal ended. No worker outlives this process. Throws Error when workers cannot be
/// started.
int launch(const Processes& place, int64_t n_workers, const Restarts& restarts,
           const std::vector<std::string>& command, bool share_prompt);

}  // namespace redco
