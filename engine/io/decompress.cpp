// Blocks compressed by Snappy, gzip and Zstandard.

#include "decompress.h"

#include <redco/error.h>

#include <zlib.h>
#include <zstd.h>

#include <cstdint>
#include <cstring>

namespace redco::io {

namespace {

[[noreturn]] void fail_to_decompress(const std::string& where, const char* method) {
  fail(where, "its ", method, " compressed data are damaged");
}

}  // namespace

// https://github.com/google/snappy/blob/main/format_description.txt
std::string decompress_snappy(const std::string& where, std::string_view bytes, size_t size) {
  size_t at = 0;
  auto check = [&](bool is_right) {
    if (!is_right) fail_to_decompress(where, "Snappy");
  };
  auto number = [&](size_t width) {
    check(width <= bytes.size() - at);
    uint32_t value = 0;
    std::memcpy(&value, bytes.data() + at, width);
    at += width;
    return value;
  };
  uint64_t stated = 0;
  for (int shift = 0;; shift += 7) {
    check(shift < 35);
    uint32_t byte = number(1);
    stated |= uint64_t(byte & 0x7f) << shift;
    if (byte < 0x80) break;
  }
  // An element of the input makes at most 32 times its size: 64 bytes of 2.
  check(stated == size && size / 32 <= bytes.size());
  std::string out(size, '\0');
  size_t end = 0;
  while (at < bytes.size()) {
    uint32_t tag = number(1), length = (tag >> 2) + 1;
    if ((tag & 3) == 0) {  // a literal
      if (length > 60) length = number(length - 60) + 1;
      check(length != 0 && length <= bytes.size() - at && length <= size - end);
      std::memcpy(out.data() + end, bytes.data() + at, length);
      at += length;
      end += length;
      continue;
    }
    uint32_t offset = 0;  // of a copy, back from the end of the output
    if ((tag & 3) == 1) {
      length = (tag >> 2 & 7) + 4;
      offset = (tag >> 5) << 8 | number(1);
    } else {
      offset = number((tag & 3) == 2 ? 2 : 4);
    }
    check(offset != 0 && offset <= end && length <= size - end);
    if (offset >= length) {
      std::memcpy(out.data() + end, out.data() + end - offset, length);
      end += length;
      continue;
    }
    // Source and target overlap: the copy repeats what it writes.
    for (uint32_t i = 0; i < length; ++i, ++end) out[end] = out[end - offset];
  }
  check(end == size);
  return out;
}

std::string decompress_gzip(const std::string& where, std::string_view bytes, size_t size) {
  z_stream stream{};
  constexpr int with_header = 16 + MAX_WBITS;
  if (inflateInit2(&stream, with_header) != Z_OK) fail_to_decompress(where, "gzip");
  struct End {
    z_stream& stream;
    ~End() { inflateEnd(&stream); }
  } end{stream};
  std::string out(size, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = uInt(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = uInt(out.size());
  bool is_whole = inflate(&stream, Z_FINISH) == Z_STREAM_END && stream.avail_out == 0;
  if (!is_whole) fail_to_decompress(where, "gzip");
  return out;
}

std::string decompress_zstd(const std::string& where, std::string_view bytes, size_t size) {
  std::string out(size, '\0');
  if (ZSTD_decompress(out.data(), size, bytes.data(), bytes.size()) != size)
    fail_to_decompress(where, "Zstandard");
  return out;
}

}  // namespace redco::io
