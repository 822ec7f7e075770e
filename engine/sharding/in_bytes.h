#pragma once

#include <cstdint>
#include <string>

namespace redco::sharding {

/// An amount for people: "1.5 MiB".
std::string in_bytes(int64_t bytes);

}  // namespace redco::sharding
