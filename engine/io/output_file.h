#pragma once

#include <redco/error.h>

#include <cstddef>
#include <string>

namespace redco::io {

/// A new file, open for writing; its descriptor is closed with the object. Every failure is an
/// Error with the path and the system's reason.
class OutputFile {
 public:
  /// The path must not exist. `shown` is the path for errors, if different.
  explicit OutputFile(std::string path, std::string shown = "");
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  const std::string& path() const { return path_; }
  void write(const void* data, size_t size);
  /// Syncs and closes the file. To be called once, after the last write.
  void finish();
  bool is_finished() const { return descriptor_ < 0; }

 private:
  std::string path_;
  std::string shown_;
  int descriptor_ = -1;
};

/// Makes the content of a file durable.
void sync_file(const std::string& path);

/// Makes the names in a folder durable: files that were created, renamed or removed there.
void sync_folder(const std::string& folder);

/// The disk is full, or the user's part of it.
class NoSpace : public Error {
 public:
  using Error::Error;
};

/// Throws Error for a failure to write `path`, with the reason in errno; NoSpace if that is it.
[[noreturn]] void fail_to_write(const std::string& path);

}  // namespace redco::io
