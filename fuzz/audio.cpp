// A WAV, FLAC or Ogg file.
#include "memory_file.h"

#include <redco/audio.h>
#include <redco/error.h>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    redco::decode_audio("", text_of(data, size));
  } catch (const redco::Error&) {
  }
  return 0;
}
