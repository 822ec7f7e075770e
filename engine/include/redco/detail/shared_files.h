#pragma once

#include <redco/export.h>

#include <functional>
#include <string>

namespace redco {

/// An exclusive lock on a file by flock(2), as Python's `filelock` takes it. The system releases it
/// when the process ends in any way.
class REDCO_API WaitingLock {
 public:
  /// Creates the file if it is missing, and waits until no other has the lock. `goes_on` is called
  /// meanwhile; false ends the wait. Throws Error with the path and the system's reason, and if the
  /// wait was ended.
  WaitingLock(const std::string& path, const std::function<bool()>& goes_on);
  ~WaitingLock();
  WaitingLock(const WaitingLock&) = delete;
  WaitingLock& operator=(const WaitingLock&) = delete;

 private:
  int descriptor_ = -1;
};

enum class Digest {
  sha256,
  git,  ///< SHA-1 of a header with the size and of the content, as Git names a file
};

/// The digest of a file's content, in hexadecimal digits. `goes_on` is called meanwhile; false ends
/// it. Throws Error with the path and the system's reason.
REDCO_API std::string digest_of_file(const std::string& path, Digest digest,
                                     const std::function<bool()>& goes_on);

}  // namespace redco
