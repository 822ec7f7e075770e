#pragma once

#include "file_lock.h"
#include "output_file.h"

#include <redco/detail/write_file.h>

#include <cstddef>
#include <memory>
#include <string>

namespace redco::io {

/// A file that is written atomically. It is written under a temporary name in the same folder;
/// `commit` syncs it and renames it, replacing an earlier file. Without a commit it is removed. The
/// first one that a process writes to a folder also removes temporary files of killed processes
/// there. Every failure is an Error with the path and the system's reason.
class AtomicFile {
 public:
  /// Throws Error if the path exists and is not a regular file: a rename would replace a device. A
  /// symbolic link is replaced, not followed.
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, size_t size);
  /// Syncs the data under the temporary name. To be called once, after the last write.
  void finish();
  /// Renames the file. To be called once, after `finish` or instead of it.
  void commit();

 private:
  std::string path_;
  std::string folder_;
  std::unique_ptr<OutputFile> file_;  ///< under the temporary name; null after the rename
  std::unique_ptr<FileLock> lock_;    ///< shows other processes that the file is in use
};

/// Removes temporary files of killed processes, but not those being written.
void remove_stale_files(const std::string& folder);

}  // namespace redco::io
