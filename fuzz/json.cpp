// A JSON text. The text written from its value must be readable, and reading and writing that text
// must not change it.
#include "memory_file.h"

#include <redco/error.h>
#include <redco/json.h>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string written;
  try {
    written = redco::json_from_tree("", redco::tree_from_json("", text_of(data, size)));
  } catch (const redco::Error&) {
    return 0;
  }
  if (redco::json_from_tree("", redco::tree_from_json("", written)) != written) abort();
  return 0;
}
