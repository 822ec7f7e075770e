// A GGUF file.
#include "memory_file.h"

#include <redco/error.h>
#include <redco/gguf.h>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  MemoryFile file(text_of(data, size));
  try {
    read_all(redco::GgufFile(file.path()));
  } catch (const redco::Error&) {
  }
  return 0;
}
