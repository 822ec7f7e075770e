#pragma once

#include <redco/export.h>

#include <atomic>

namespace redco {

/// Guards reads of mapped files. Reading one after it was truncated, or when its disk fails, raises
/// SIGBUS, which ends the process. After this call such reads return zeros, and
/// `check_mapped_files` throws. It installs a handler for SIGBUS; a SIGBUS with another cause goes
/// to the previous handler. For programs: the library itself installs no handlers.
REDCO_API void guard_mapped_files();

REDCO_API extern std::atomic<bool> mapped_file_failed;
[[noreturn]] REDCO_API void fail_for_mapped_file();

/// Throws Error, which names the file, if a read of a mapped file failed since the last call.
inline void check_mapped_files() {
  if (mapped_file_failed.load(std::memory_order_relaxed)) [[unlikely]]
    fail_for_mapped_file();
}

}  // namespace redco
