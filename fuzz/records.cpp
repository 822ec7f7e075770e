// A text file, split into records of every kind. The line numbers of the records must increase.
#include "memory_file.h"

#include <redco/record_file.h>

#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using redco::RecordKind;
  for (RecordKind kind :
       {RecordKind::line, RecordKind::full_line, RecordKind::paragraph, RecordKind::csv}) {
    auto records = redco::RecordFile::of_text("text", std::string(text_of(data, size)), kind);
    int64_t line = 0;
    for (int64_t i = 0; i < records.size(); ++i) {
      if (kind != RecordKind::line && records.read(i).empty()) abort();
      if (i < 100 && records.line_number(i) <= line) abort();
      if (i < 100) line = records.line_number(i);
    }
  }
  return 0;
}
