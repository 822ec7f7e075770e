#pragma once

#include <sys/types.h>

#include <string>

namespace redco {

/// An exclusive lock on a file: the system releases it when the process ends, however it ends, and
/// a network file system when the host is gone.
class FileLock {
 public:
  enum class State {
    taken,
    held,         ///< by another process, or by another FileLock of this one
    gone,         ///< the file was removed or replaced meanwhile
    unsupported,  ///< the file system has no locks, or the file cannot be opened for writing
  };

  /// Does not wait. With `creates` the file is made if it is missing.
  explicit FileLock(std::string path, bool creates = false);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  /// Whether someone has a lock on the file, which this does not try to take.
  static bool is_locked(const std::string& path);

  State state() const { return state_; }
  /// Of a lock that is taken. Replaces the content of the file; failures are ignored.
  void write(const std::string& text) const;
  /// Of a lock that is taken: removes the file. Nobody else can have the lock then.
  void remove_file() const;

 private:
  std::string path_;
  int descriptor_;
  State state_;
};

}  // namespace redco
