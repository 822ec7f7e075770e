#pragma once

#include <cstddef>
#include <string>

namespace redco {

/// A new file, open for writing; its descriptor is closed with the object. Every failure is an
/// Error with the path and the system's reason.
class OutputFile {
 public:
  /// Nothing may be at the path. `shown` is the path for errors, where that is another.
  explicit OutputFile(std::string path, std::string shown = "");
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  const std::string& path() const { return path_; }
  void write(const void* data, size_t size);
  /// Once, after the last write: what was written is safe from now on.
  void finish();
  bool is_finished() const { return descriptor_ < 0; }

 private:
  std::string path_;
  std::string shown_;
  int descriptor_ = -1;
};

/// Makes what was written to a file safe.
void sync_file(const std::string& path);

/// Makes the names in a folder safe: files that were made, renamed and removed there.
void sync_folder(const std::string& folder);

/// Throws Error: `path` cannot be written, for the reason in errno.
[[noreturn]] void fail_to_write(const std::string& path);

}  // namespace redco
