#pragma once

#include <cstddef>
#include <fstream>

namespace redco {

/// Megabytes of memory that this process has.
inline double resident_mb() {
  std::ifstream status("/proc/self/statm");
  size_t total, resident;
  status >> total >> resident;
  return double(resident) * 4096 / 1e6;
}

/// Megabytes that it may grow by where nothing stays behind.
#ifdef __SANITIZE_ADDRESS__
constexpr double slack_mb = 400;  // freed memory is kept back; the sanitizer itself tells of leaks
#else
constexpr double slack_mb = 8;
#endif

}  // namespace redco
