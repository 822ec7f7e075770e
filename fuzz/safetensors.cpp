// A safetensors file. An input that begins with a brace is the header of a file with 64 bytes of
// data.
#include "memory_file.h"

#include <redco/error.h>
#include <redco/safetensors.h>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string bytes(text_of(data, size));
  if (!bytes.empty() && bytes[0] == '{') {
    uint64_t length = bytes.size();
    bytes = std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + bytes;
    bytes.resize(bytes.size() + 64);
  }
  MemoryFile file(bytes);
  try {
    read_all(redco::SafetensorsFile(file.path()));
  } catch (const redco::Error&) {
  }
  return 0;
}
