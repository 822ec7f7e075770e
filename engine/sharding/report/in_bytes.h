#pragma once

#include <cstdint>
#include <string>

namespace redco::sharding {

/// Formats a number of bytes: "1.5 MiB".
std::string in_bytes(int64_t bytes);

}  // namespace redco::sharding
