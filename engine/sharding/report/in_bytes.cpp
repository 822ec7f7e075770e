// Formats numbers of bytes.

#include "in_bytes.h"

#include <cstdio>

namespace redco::sharding {

std::string in_bytes(int64_t bytes) {
  struct Unit {
    int64_t size;
    const char* name;
  };
  constexpr Unit units[] = {{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}};
  for (const Unit& unit : units) {
    if (bytes < unit.size) continue;
    char text[40];
    std::snprintf(text, sizeof(text), "%.1f %s", double(bytes) / double(unit.size), unit.name);
    return text;
  }
  return std::to_string(bytes) + " B";
}

}  // namespace redco::sharding
