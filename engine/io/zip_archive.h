#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace redco::io {

/// A file of a zip archive; a view of the archive's bytes.
struct ZipRecord {
  std::string_view stored;
  uint64_t size = 0;  ///< uncompressed
  bool is_compressed = false;

  /// Throws Error if the data does not have this size.
  std::string text() const;
};
using ZipRecords = std::map<std::string, ZipRecord>;

/// Reads an archive as torch.jit.save writes it, and checks every size, offset and CRC-32. Throws
/// Error, beginning with `where`, for one that is damaged, or unusual: encrypted, in several parts,
/// with a file listed twice or bytes shared by two.
ZipRecords read_zip(const std::string& where, std::string_view bytes);

}  // namespace redco::io
