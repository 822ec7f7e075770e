#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace redco {

/// Runs `command` in `n_workers` processes of this host, which find each other by torchrun's
/// variables. Each line they write comes out with `[rank] ` before it. When one fails the others
/// are stopped, and its error is shown last. Returns the exit code of the run: that of the first
/// worker that failed, 128 + the signal for one that a signal ended. No worker outlives this
/// process. Throws Error when the workers cannot be started.
int launch(int64_t n_workers, const std::vector<std::string>& command);

}  // namespace redco
