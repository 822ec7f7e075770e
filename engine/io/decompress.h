#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace redco::io {

/// Decompresses `bytes` to exactly `size` bytes. All throw Error, beginning with `where`, for
/// damaged bytes and for another size.
std::string decompress_snappy(const std::string& where, std::string_view bytes, size_t size);
std::string decompress_gzip(const std::string& where, std::string_view bytes, size_t size);
std::string decompress_zstd(const std::string& where, std::string_view bytes, size_t size);

}  // namespace redco::io
