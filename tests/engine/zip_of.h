// Zip archives whose sums fit, for tests and fuzz targets of what reads them.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

/// The name and the bytes of a file in an archive.
using Member = std::pair<std::string, std::string>;

template <class T>
void put(std::string& text, T value) {
  text.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

/// The bytes of each file begin at a multiple of `alignment`, behind padding as of torch.save.
inline std::string zip_of(const std::vector<Member>& members, size_t alignment = 1) {
  std::string bytes, directory;
  for (const auto& [name, data] : members) {
    auto size = uint32_t(data.size()), offset = uint32_t(bytes.size());
    auto crc = uint32_t(crc32(0, reinterpret_cast<const Bytef*>(data.data()), size));
    std::string common;  // what both headers have: from the version to the length of the name
    for (uint16_t each : {20, 0, 0, 0, 0}) put(common, each);
    for (uint32_t each : {crc, size, size}) put(common, each);
    put(common, uint16_t(name.size()));
    constexpr size_t header = 30, field = 4;
    size_t end = bytes.size() + header + name.size() + field;
    std::string extra = "FB";
    put(extra, uint16_t((alignment - end % alignment) % alignment));
    extra.resize(field + (alignment - end % alignment) % alignment);
    if (alignment == 1) extra.clear();
    put(bytes, uint32_t{0x04034b50});
    bytes += common;
    put(bytes, uint16_t(extra.size()));
    bytes += name + extra + data;
    put(directory, uint32_t{0x02014b50});
    put(directory, uint16_t{20});
    directory += common + std::string(12, '\0');  // no extra fields, and others that are zero
    put(directory, offset);
    directory += name;
  }
  auto begin = uint32_t(bytes.size()), n = uint32_t(members.size() << 16 | members.size());
  bytes += directory;
  put(bytes, uint32_t{0x06054b50});
  for (uint32_t each : {uint32_t(0), n, uint32_t(directory.size()), begin}) put(bytes, each);
  return bytes + std::string(2, '\0');
}
