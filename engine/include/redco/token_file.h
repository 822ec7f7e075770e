#pragma once

#include <redco/export.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

namespace redco {

class InputFile;

/// A file of tokens, 2 or 4 bytes each in little-endian order, read when they are asked for. Either
/// nothing but these, as nanoGPT writes them, or with the header of llm.c before them: 256 int32,
/// of which the first three are a magic number, a version and the number of tokens - 20240520 and 1
/// for tokens of 2 bytes, 20240801 and 7 for 4. For any number of threads at a time.
class REDCO_API TokenFile {
 public:
  /// `dtype`, uint16 or uint32, is that of a file without a header.
  explicit TokenFile(const std::string& path, c10::ScalarType dtype = at::kUInt16);
  TokenFile(TokenFile&&) noexcept;
  ~TokenFile();

  int64_t size() const { return size_; }  ///< in tokens

  /// `count` tokens from `first` on, int64 [count].
  at::Tensor read(int64_t first, int64_t count) const;

 private:
  std::string path_;
  std::unique_ptr<InputFile> file_;
  c10::ScalarType dtype_;
  uint64_t offset_ = 0;
  int64_t size_ = 0;
};

/// Writes such a file, with the header: integers of any type and shape. It appears as a whole, in
/// place of an earlier one. An error for a token that `dtype`, uint16 or uint32, cannot hold.
REDCO_API void write_tokens(const std::string& path, const at::Tensor& tokens,
                            c10::ScalarType dtype = at::kUInt16);

}  // namespace redco
