// Machine code of kernels in the cache folder. A file's name is the digest of its key; it holds the
// digest of the code, then the code.

#include "kept_code.h"

#include <redco/detail/write_file.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace redco {

namespace {

// Hexadecimal digits.
std::string digest_of(std::string_view bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  char text[33];
  std::snprintf(text, sizeof(text), "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return text;
}

}  // namespace

std::string kept_code(const std::string& folder, std::string_view key,
                      const std::function<std::string()>& make) {
  if (folder.empty()) return make();
  const std::string path = folder + "/" + digest_of(key);
  std::error_code error;
  if (std::filesystem::is_regular_file(path, error)) {
    std::ifstream file(path, std::ios::binary);
    const std::string bytes(std::istreambuf_iterator<char>(file), {});
    const size_t n = std::min(bytes.size(), digest_of("").size());
    std::string code = bytes.substr(n);
    if (bytes.compare(0, n, digest_of(code)) == 0) return code;
  }
  std::string code = make();
  std::filesystem::create_directories(folder, error);
  try {
    if (!error) write_file(path, digest_of(code) + code);
  } catch (const std::exception&) {  // the next process compiles it again
  }
  return code;
}

}  // namespace redco
