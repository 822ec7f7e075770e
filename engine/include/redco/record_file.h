#pragma once

#include <redco/export.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace redco {

class InputFile;

/// What a record of a text file is.
enum class RecordKind {
  line,       ///< a line, without its "\n" or "\r\n"
  full_line,  ///< a line that has more than blanks
  paragraph,  ///< lines that follow each other without one that is empty or has only blanks
  csv,        ///< a full line, and further ones where it ends inside quotes (RFC 4180)
};

/// The records of a text file: found by one pass over it, read when they are asked for. Of the file
/// nothing is held but where its records start, 8 bytes each. A byte order mark is skipped. For any
/// number of threads at a time. Errors name the file.
class REDCO_API RecordFile {
 public:
  RecordFile(const std::string& path, RecordKind kind);
  /// The same for a text that is at hand, held as a whole.
  static RecordFile of_text(std::string text, RecordKind kind);
  RecordFile(RecordFile&&) noexcept;
  ~RecordFile();

  int64_t size() const { return int64_t(starts_.size()); }

  /// Record `index`, from 0 on, without the end of its line; all kinds but `line` also without
  /// blanks at its end. The file must not have changed since.
  std::string read(int64_t index) const;

  /// The number, from 1 on, of the line that a record starts with. Reads the file up to it.
  int64_t line_number(int64_t index) const;

 private:
  explicit RecordFile(RecordKind kind);
  void find_records();
  void read_bytes(char* data, size_t size, uint64_t offset) const;

  RecordKind kind_;
  std::unique_ptr<InputFile> file_;  // null: text_
  std::string text_;
  uint64_t size_ = 0;
  std::vector<uint64_t> starts_;
};

}  // namespace redco
