// Finds and reads the records of text files.

#include <redco/record_file.h>

#include "../../io/input_file.h"

#include <redco/error.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

namespace redco {

using namespace io;

namespace {

constexpr size_t chunk_size = 1 << 20;

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

// Whether a line, or a part of it, has no record. A tab may separate two empty values.
bool is_blank_line(RecordKind kind, std::string_view line) {
  return std::all_of(line.begin(), line.end(), [kind](char c) {
    return is_blank(c) && (kind != RecordKind::csv || c != '\t');
  });
}

// Whether "\r" alone ends a line, as in Python. Between two values of JSON it is a blank.
bool ends_with_cr(RecordKind kind) { return kind != RecordKind::full_line; }

void remove_newline(std::string& record) {
  if (record.ends_with('\n')) record.pop_back();
  if (record.ends_with('\r')) record.pop_back();
}

// Removes the end of a record's last line, and blank lines after it. Other blanks at its end are
// part of its last value.
void remove_csv_end(std::string& record) {
  while (true) {
    remove_newline(record);
    size_t end = record.find_last_of("\r\n");
    if (end == std::string::npos) return;
    if (!is_blank_line(RecordKind::csv, std::string_view(record).substr(end + 1))) return;
    record.resize(end + 1);
  }
}

// Scans a text in pieces and collects the offsets of its records.
class Scan {
 public:
  Scan(RecordKind kind, char delimiter, uint64_t start, std::vector<uint64_t>& starts)
      : kind_(kind), delimiter_(delimiter), line_start_(start), starts_(starts) {}

  // `offset` is the position of the piece in the text.
  void add(std::string_view piece, uint64_t offset) {
    size_t begin = 0;
    if (after_cr_) {
      after_cr_ = false;
      begin = piece.front() == '\n' ? 1 : 0;
      end_line(offset + begin);
    }
    size_t lf = piece.find('\n', begin);
    size_t cr = ends_with_cr(kind_) ? piece.find('\r', begin) : piece.npos;
    while (begin < piece.size()) {
      if (lf < begin) lf = piece.find('\n', begin);
      if (cr < begin) cr = piece.find('\r', begin);
      size_t end = std::min(lf, cr);
      look_at(piece.substr(begin, end - begin));
      if (end == piece.npos) return;
      begin = end + 1;
      if (end == cr && begin == piece.size()) {
        after_cr_ = true;
        return;
      }
      if (end == cr && piece[begin] == '\n') ++begin;
      end_line(offset + begin);
    }
  }

  // The last line may lack a newline.
  void finish(uint64_t size) {
    if (line_start_ < size) end_line(size);
  }

 private:
  // A place in a CSV record: at the start of a value, in an unquoted value, in a quoted value, or
  // after a quote that ends the value unless another quote follows.
  enum class Place : uint8_t { start, value, quoted, after_quote };

  void look_at(std::string_view part_of_line) {
    if (kind_ == RecordKind::line) return;
    if (is_empty_) is_empty_ = is_blank_line(kind_, part_of_line);
    if (kind_ == RecordKind::csv) look_at_values(part_of_line);
  }

  void look_at_values(std::string_view part) {
    if (part.empty()) return;
    const bool is_inside = place_ == Place::quoted || place_ == Place::after_quote;
    if (!is_inside && part.find('"') == std::string_view::npos)
      place_ = part.back() == delimiter_ ? Place::start : Place::value;
    else
      for (char c : part) place_ = after(c);
  }

  // A quote opens a quoted value only at the start of the value; a doubled quote stands for one.
  Place after(char c) const {
    if (c == '"') {
      if (place_ == Place::start || place_ == Place::after_quote) return Place::quoted;
      if (place_ == Place::quoted) return Place::after_quote;
    }
    if (place_ == Place::quoted) return Place::quoted;
    return c == delimiter_ ? Place::start : Place::value;
  }

  void end_line(uint64_t next) {
    // A later line of a paragraph or of a quoted field continues a record.
    if (kind_ == RecordKind::line || (!is_empty_ && !continues_)) starts_.push_back(line_start_);
    if (kind_ == RecordKind::paragraph) continues_ = !is_empty_;
    if (kind_ == RecordKind::csv) {
      continues_ = place_ == Place::quoted;
      if (!continues_) place_ = Place::start;
    }
    line_start_ = next;
    is_empty_ = true;
  }

  RecordKind kind_;
  char delimiter_;
  uint64_t line_start_;
  std::vector<uint64_t>& starts_;
  bool is_empty_ = true, continues_ = false;
  bool after_cr_ = false;  // whether the last piece ends with "\r", which a "\n" may follow
  Place place_ = Place::start;
};

}  // namespace

RecordFile::RecordFile() = default;
RecordFile::RecordFile(RecordFile&&) noexcept = default;
RecordFile::~RecordFile() = default;

RecordFile::RecordFile(const std::string& path, RecordKind kind, char delimiter)
    : name_(path),
      kind_(kind),
      delimiter_(delimiter),
      file_(std::make_unique<InputFile>(path, "a text file")),
      size_(file_->size()) {
  find_records();
}

RecordFile RecordFile::of_text(std::string name, std::string text, RecordKind kind,
                               char delimiter) {
  RecordFile records;
  records.name_ = std::move(name);
  records.kind_ = kind;
  records.delimiter_ = delimiter;
  records.text_ = std::move(text);
  records.size_ = records.text_.size();
  records.find_records();
  return records;
}

void RecordFile::read_bytes(char* data, size_t size, uint64_t offset) const {
  if (file_)
    file_->read(data, size, offset);
  else
    std::memcpy(data, text_.data() + offset, size);
}

void RecordFile::find_records() {
  constexpr std::string_view mark = "\xEF\xBB\xBF";
  std::string chunk(size_t(std::min<uint64_t>(size_, mark.size())), '\0');
  read_bytes(chunk.data(), chunk.size(), 0);
  uint64_t offset = chunk == mark ? mark.size() : 0;
  for (Scan scan(kind_, delimiter_, offset, starts_);; offset += chunk.size()) {
    check_interrupt();
    if (offset == size_) return scan.finish(size_);
    chunk.resize(size_t(std::min<uint64_t>(size_ - offset, chunk_size)));
    read_bytes(chunk.data(), chunk.size(), offset);
    scan.add(chunk, offset);
  }
}

std::string RecordFile::read(int64_t index) const {
  require(index >= 0 && index < size(), "there is no record ", index, " among ", size());
  uint64_t start = starts_[size_t(index)];
  uint64_t end = index + 1 < size() ? starts_[size_t(index) + 1] : size_;
  if (end - start > longest_piece)
    fail(name_, ":", line_number(index), ": a record of ", end - start, " bytes, expected at most ",
         longest_piece);
  std::string record(size_t(end - start), '\0');
  read_bytes(record.data(), record.size(), start);
  if (kind_ == RecordKind::line) {
    remove_newline(record);
  } else if (kind_ == RecordKind::csv) {
    remove_csv_end(record);
  } else {
    while (!record.empty() && is_blank(record.back())) record.pop_back();
  }
  return record;
}

int64_t RecordFile::line_number(int64_t index) const {
  require(index >= 0 && index < size(), "there is no record ", index, " among ", size());
  uint64_t start = starts_[size_t(index)];
  int64_t number = 1;
  bool after_cr = false;
  std::string chunk;
  for (uint64_t offset = 0; offset < start; offset += chunk.size()) {
    chunk.resize(size_t(std::min<uint64_t>(start - offset, chunk_size)));
    read_bytes(chunk.data(), chunk.size(), offset);
    for (char c : chunk) {
      if (c == '\n' && !after_cr) ++number;
      after_cr = c == '\r' && ends_with_cr(kind_);
      if (after_cr) ++number;
    }
  }
  return number;
}

}  // namespace redco
