#pragma once

#include <redco/mesh.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

namespace redco {

/// Where the run's store is, by torchrun's own, which has no secret: process 0 writes `own` there.
/// Who else writes there leads the others nowhere that they would talk to. Throws Error when that
/// is not written in time.
std::pair<std::string, int64_t> announce_store(const Processes& processes,
                                               const std::pair<std::string, int64_t>& own,
                                               std::chrono::milliseconds timeout);

}  // namespace redco
