#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace redco::text {

/// Characters [begin, end) of the given text, counted in code points.
struct Span {
  uint32_t begin = 0;
  uint32_t end = 0;
};

/// UTF-8 text in the pipeline. If tracked, it stores the origin of each byte: the characters of the
/// given text that it comes from.
class Text {
 public:
  explicit Text(bool tracked) : tracked_(tracked) {}
  /// A part of the given text that begins at its character `first`.
  Text(std::string_view given, size_t first, bool tracked);

  const std::string& bytes() const { return bytes_; }
  bool empty() const { return bytes_.empty(); }
  size_t size() const { return bytes_.size(); }
  bool tracked() const { return tracked_; }

  /// The origin of byte `i`; if i is the size, an empty one.
  Span origin(size_t i) const { return tracked_ && i < origins_.size() ? origins_[i] : Span(); }
  /// The joint origin of bytes [begin, end).
  Span origin(size_t begin, size_t end) const {
    return begin < end ? Span{origin(begin).begin, origin(end - 1).end} : Span();
  }

  void reserve(size_t size);
  /// Appends bytes that all have this origin.
  void append(std::string_view bytes, Span origin);
  /// Appends bytes [begin, end) of another text with their origins.
  void append(const Text& other, size_t begin, size_t end);
  /// Keeps bytes [begin, end).
  void crop(size_t begin, size_t end);

 private:
  bool tracked_;
  std::string bytes_;
  std::vector<Span> origins_;
};

/// Bytes [begin, end) of a Text.
struct Range {
  size_t begin;
  size_t end;
};

/// A text and its nonempty pieces for the model.
struct Pieces {
  Text text;
  std::vector<Range> ranges;
  /// Whether the text is the start of the given text.
  bool starts_text = false;

  std::string_view view(Range range) const {
    return std::string_view(text.bytes()).substr(range.begin, range.end - range.begin);
  }
};

}  // namespace redco::text
