// A WAV, FLAC or Ogg file.
#include "memory_file.h"

#include <redco/audio.h>
#include <redco/error.h>

// libsndfile 1.2 does not free what it has read of an Ogg file if the rest of its headers is
// damaged.
extern "C" [[gnu::visibility("default")]] const char* __lsan_default_suppressions() {
  return "leak:vorbis_info_init";
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    redco::decode_audio("", text_of(data, size));
  } catch (const redco::Error&) {
  }
  return 0;
}
