#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

/// A file in memory with a path.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : descriptor_(memfd_create("fuzz", 0)) {
    if (write(descriptor_, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()))
      abort();
  }
  ~MemoryFile() { close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// Reads every byte of every tensor of an opened file.
template <class File>
void read_all(const File& file) {
  volatile unsigned sum = 0;
  for (const std::string& name : file.keys()) {
    auto tensor = file.tensor(name);
    const auto* bytes = static_cast<const unsigned char*>(tensor.const_data_ptr());
    for (size_t i = 0; i < tensor.nbytes(); ++i) sum = sum + bytes[i];
  }
}
