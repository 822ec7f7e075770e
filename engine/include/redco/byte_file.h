#pragma once

#include <redco/export.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace redco {

namespace io {
class InputFile;
}

/// A file of which parts are read on demand. Thread-safe. Errors name the file.
class REDCO_API ByteFile {
 public:
  /// `kind` names the expected file in errors: "a tar archive".
  ByteFile(const std::string& path, const std::string& kind);
  ByteFile(ByteFile&&) noexcept;
  ~ByteFile();

  int64_t size() const;  ///< in bytes

  /// Reads `count` bytes from `offset` on, of at most 2 GB. Throws Error if the file ends before.
  std::string read(int64_t offset, int64_t count) const;

  /// Reads a tensor [count] whose elements are stored in little-endian order from `offset` on.
  at::Tensor read_tensor(int64_t offset, int64_t count, c10::ScalarType dtype) const;

 private:
  void check(int64_t offset, int64_t count, int64_t width) const;

  std::string path_;
  std::unique_ptr<io::InputFile> file_;
};

/// Reads all files of a zip archive, such as NumPy's .npz, whose checksums must be right. Throws
/// Error for a damaged archive and for a file of more than 2 GB.
REDCO_API std::map<std::string, std::string> read_zip_archive(const std::string& path);

}  // namespace redco
