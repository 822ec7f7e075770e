#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace redco::text {

/// Characters [begin, end) of the text a user gave, counted in code points.
struct Span {
  uint32_t begin = 0;
  uint32_t end = 0;
};

/// Text on its way through the pipeline, UTF-8. Where it is tracked, each byte knows the characters
/// of the given text that it stands for.
class Text {
 public:
  explicit Text(bool tracked) : tracked_(tracked) {}
  /// A part of the given text that begins at its character number `first`.
  Text(std::string_view given, size_t first, bool tracked);

  const std::string& bytes() const { return bytes_; }
  bool empty() const { return bytes_.empty(); }
  size_t size() const { return bytes_.size(); }
  bool tracked() const { return tracked_; }

  /// What byte `i` stands for; where i is the size, the character after the last.
  Span origin(size_t i) const { return tracked_ && i < origins_.size() ? origins_[i] : Span(); }
  /// What bytes [begin, end) stand for together.
  Span origin(size_t begin, size_t end) const {
    return begin < end ? Span{origin(begin).begin, origin(end - 1).end} : Span();
  }

  void reserve(size_t size);
  /// Adds bytes that all stand for `origin`.
  void append(std::string_view bytes, Span origin);
  /// Adds bytes [begin, end) of another text with what they stand for.
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

/// A text and the pieces of it that the model sees, none of which is empty.
struct Pieces {
  Text text;
  std::vector<Range> ranges;
  /// Whether the text is from the start of what the user gave.
  bool starts_text = false;

  std::string_view view(Range range) const {
    return std::string_view(text.bytes()).substr(range.begin, range.end - range.begin);
  }
};

}  // namespace redco::text
