// A safetensors file, or, beginning with a brace, the header of one, which then has 64 bytes of
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
