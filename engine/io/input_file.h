#pragma once

#include <redco/error.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace redco::io {

/// The most bytes that are read in one piece: LuaJIT's longest string.
inline constexpr uint64_t longest_piece = 0x7fffff00;

/// A file that cannot be read at present but may be intact: no permission, too many open files.
class UnreadableFile : public Error {
 public:
  using Error::Error;
};

/// A regular file, open for reading; its descriptor is closed with the object. Every failure is an
/// Error with the path and the system's reason.
class InputFile {
 public:
  /// `kind` names the expected file in errors: "a safetensors file".
  InputFile(std::string path, const std::string& kind);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  uint64_t size() const { return size_; }

  /// Reads the bytes from `offset` on. Unlike a mapping, it throws if the file was truncated.
  void read(void* data, size_t size, uint64_t offset) const;

  /// Maps the whole file. A page that is written to is copied, and only then uses memory; the file
  /// never changes. The mapping outlives this object.
  std::shared_ptr<std::byte> map() const;

 private:
  std::string path_;
  int descriptor_;
  uint64_t size_;
};

/// Reads a file of at most `limit` bytes.
std::string read_text(const std::string& path, const std::string& kind, uint64_t limit);

}  // namespace redco::io
