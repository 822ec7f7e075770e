#pragma once

#include <sys/types.h>

#include <string>

namespace redco::io {

/// An exclusive lock on a file. The system releases it when the process ends in any way, and a
/// network file system when the host is gone.
class FileLock {
 public:
  enum class State {
    taken,
    held,         ///< by another process, or by another FileLock of this one
    gone,         ///< the file was removed or replaced meanwhile
    linked,       ///< a symbolic link, or one of several hard links: `write` would change a file
                  ///< that has another name
    unsupported,  ///< the file system has no locks, or the file is not writable
  };

  /// Does not wait. With `creates` the file is created if it is missing.
  explicit FileLock(std::string path, bool creates = false);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  /// Whether anyone holds a lock on the file. Does not try to take it.
  static bool is_locked(const std::string& path);

  State state() const { return state_; }
  /// Replaces the content of the file, which must be locked by this; failures are ignored.
  void write(const std::string& text) const;
  /// Removes the file, which must be locked by this, so that nobody else can hold its lock.
  void remove_file() const;

 private:
  std::string path_;
  int descriptor_;
  State state_;
};

}  // namespace redco::io
