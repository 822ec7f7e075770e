// A Parquet file, whose first and last rows are read. An input without "PAR1" at its end is the
// metadata of such a file.
#include "memory_file.h"

#include <redco/error.h>
#include <redco/parquet.h>

#include <algorithm>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string bytes(text_of(data, size));
  if (!bytes.ends_with("PAR1")) {
    auto length = uint32_t(bytes.size());
    bytes = "PAR1" + bytes;
    bytes.append(reinterpret_cast<const char*>(&length), sizeof(length));
    bytes += "PAR1";
  }
  MemoryFile memory(bytes);
  try {
    redco::ParquetFile file(memory.path(), {}, 1 << 26);
    for (int64_t i = 0; i < std::min<int64_t>(file.size(), 20); ++i) {
      try {
        file.row(i);
        file.row(file.size() - 1 - i);
      } catch (const redco::Error&) {
        break;
      }
    }
  } catch (const redco::Error&) {
  }
  return 0;
}
