#pragma once

#include <redco/export.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace redco {

namespace io {
class InputFile;
}

/// How a text file is divided into records.
enum class RecordKind {
  line,       ///< a line, without its "\n", "\r\n" or "\r"
  full_line,  ///< a line that ends in "\n" and is not blank
  paragraph,  ///< consecutive lines that are not blank
  csv,        ///< a line of more than spaces, continued in a value in quotes (RFC 4180)
};

/// The records of a text file. One pass over the file finds them; their text is read on demand.
/// Memory holds only the start of each record, 8 bytes each. A byte order mark is skipped.
/// Thread-safe. Errors name the file.
class REDCO_API RecordFile {
 public:
  /// `delimiter` separates the values of CSV: a quote in the middle of a value is part of it.
  RecordFile(const std::string& path, RecordKind kind, char delimiter = ',');
  /// The same for a text in memory; `name` stands for a path in errors.
  static RecordFile of_text(std::string name, std::string text, RecordKind kind,
                            char delimiter = ',');
  RecordFile(RecordFile&&) noexcept;
  ~RecordFile();

  int64_t size() const { return int64_t(starts_.size()); }

  /// Returns record `index`, counted from 0, without its line ending; full_line and paragraph also
  /// strip trailing blanks. A record of 2 GiB or more is an Error. The file must not have changed.
  std::string read(int64_t index) const;

  /// The number, counted from 1, of the line on which a record starts. Reads the file up to it.
  int64_t line_number(int64_t index) const;

 private:
  RecordFile();
  void find_records();
  void read_bytes(char* data, size_t size, uint64_t offset) const;

  std::string name_;
  RecordKind kind_ = RecordKind::line;
  char delimiter_ = ',';
  std::unique_ptr<io::InputFile> file_;  // null: the records are in text_
  std::string text_;
  uint64_t size_ = 0;
  std::vector<uint64_t> starts_;
};

}  // namespace redco
