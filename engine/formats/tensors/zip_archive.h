#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace redco::io {

/// A file of a zip archive; a view of the archive's bytes.
struct ZipMember {
  std::string_view stored;
  uint64_t size = 0;  ///< uncompressed
  bool is_compressed = false;
  uint32_t crc = 0;
  std::string where = {};  ///< for errors: the archive and the file

  /// Reads the data once. Throws Error if it does not have this size and CRC-32.
  void check() const;
  /// The checked data.
  std::string text() const;
};
using ZipMembers = std::map<std::string, ZipMember>;

/// Reads an archive as torch.save and torch.jit.save write it, and checks all sizes and offsets,
/// but reads no file in it. Throws Error, beginning with `where`, for one that is damaged, or
/// unusual: encrypted, in several parts, with a file listed twice or bytes shared by two.
ZipMembers read_zip(const std::string& where, std::string_view bytes);

/// The folder in which torch.save puts all files of an archive, with "/" at the end. Throws Error
/// if there is a file outside of it.
std::string folder_of(const std::string& where, const ZipMembers& members);

}  // namespace redco::io
