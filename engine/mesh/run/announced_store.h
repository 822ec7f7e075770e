#pragma once

#include <redco/mesh.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

namespace redco::mesh {

/// Returns the address of the run's store. Process 0 publishes it as `own` in torchrun's store,
/// which has no secret; if someone else writes there, the others fail to authenticate at that
/// address. Throws Error if it is not published in time.
std::pair<std::string, int64_t> announce_store(const Processes& processes,
                                               const std::pair<std::string, int64_t>& own,
                                               std::chrono::milliseconds timeout);

}  // namespace redco::mesh
