#pragma once

#include "file_lock.h"
#include "output_file.h"

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace redco {

/// A file that appears whole or not at all. It is written under a temporary name in its own folder;
/// `commit` syncs it and gives it its name, in place of an earlier file. Without a commit nothing
/// is left of it. The first one that a process writes to a folder also removes the temporary files
/// of killed processes there. Every failure is an Error with the path and the system's reason.
class AtomicFile {
 public:
  /// Refuses a path at which there is something other than a regular file: a rename would replace
  /// a device. A symbolic link is replaced, not followed.
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, size_t size);
  /// Once, after the last write: what was written is safe, under the temporary name.
  void finish();
  /// Once, after `finish` or instead of it.
  void commit();

 private:
  std::string path_;
  std::string folder_;
  std::unique_ptr<OutputFile> file_;  ///< under the temporary name; null once it has its own
  std::unique_ptr<FileLock> lock_;    ///< on it: who else finds it sees that it is in use
};

/// Removes the temporary files of processes that were killed. Those that are being written stay.
void remove_stale_files(const std::string& folder);

/// The same for what is at hand as a whole.
void write_file(const std::string& path, std::string_view bytes);

}  // namespace redco
