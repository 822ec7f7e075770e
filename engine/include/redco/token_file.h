#pragma once

#include <redco/export.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

namespace redco {

namespace io {
class InputFile;
}

/// A file of tokens, 2 or 4 bytes each in little-endian order, read on demand. It holds only
/// tokens, as nanoGPT writes them, or starts with the header of llm.c: 256 int32, of which the
/// first three are a magic number, a version and the number of tokens - 20240520 and 1 for 2-byte
/// tokens, 20240801 and 7 for 4-byte tokens. Thread-safe.
class REDCO_API TokenFile {
 public:
  /// `dtype`, uint16 or uint32, is used for files without a header.
  explicit TokenFile(const std::string& path, c10::ScalarType dtype = at::kUInt16);
  TokenFile(TokenFile&&) noexcept;
  ~TokenFile();

  int64_t size() const { return size_; }  ///< in tokens

  /// Reads `count` tokens starting at `first`, int64 [count].
  at::Tensor read(int64_t first, int64_t count) const;

 private:
  std::string path_;
  std::unique_ptr<io::InputFile> file_;
  c10::ScalarType dtype_;
  uint64_t offset_ = 0;
  int64_t size_ = 0;
};

/// Writes tokens, integers of any dtype and shape, to such a file with a header. Atomically
/// replaces an existing file. Throws Error for a token that `dtype`, uint16 or uint32, cannot hold.
REDCO_API void write_tokens(const std::string& path, const at::Tensor& tokens,
                            c10::ScalarType dtype = at::kUInt16);

}  // namespace redco
