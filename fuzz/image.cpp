// An image file.
#include "memory_file.h"

#include <redco/error.h>
#include <redco/image.h>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    redco::decode_image("", text_of(data, size));
  } catch (const redco::Error&) {
  }
  return 0;
}
