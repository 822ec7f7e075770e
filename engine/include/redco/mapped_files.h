#pragma once

#include <redco/export.h>

#include <atomic>

namespace redco {

/// Reading a mapped file after it was shortened, or where its disk fails, raises SIGBUS, which ends
/// the process. After this call such reads give zeros, and `check_mapped_files` throws. It installs
/// a handler for SIGBUS; signals from elsewhere go to the handler that was there before. For
/// programs: the library itself installs no handlers.
REDCO_API void guard_mapped_files();

REDCO_API extern std::atomic<bool> mapped_file_failed;
[[noreturn]] REDCO_API void fail_for_mapped_file();

/// Throws Error, which names the file, if a read of a mapped file has failed since the last call.
inline void check_mapped_files() {
  if (mapped_file_failed.load(std::memory_order_relaxed)) [[unlikely]]
    fail_for_mapped_file();
}

}  // namespace redco
