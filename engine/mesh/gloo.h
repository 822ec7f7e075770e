#pragma once

#include "backend.h"

#include <redco/export.h>

#include <chrono>
#include <cstdint>
#include <string>

namespace redco::mesh {

/// Connects the ranks 0 .. size - 1 that call this with the same store, on the CPU. `store_address`
/// selects the network, the one on which the store is reached, unless GLOO_SOCKET_IFNAME names an
/// interface.
REDCO_API Backend make_gloo(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank,
                            int64_t size, std::chrono::milliseconds timeout,
                            const std::string& store_address, bool one_host);

}  // namespace redco::mesh
