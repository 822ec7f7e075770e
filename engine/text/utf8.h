#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace redco::text {

/// U+2581, which represents a space in SentencePiece's pieces.
inline constexpr std::string_view space_symbol = "\u2581";
inline constexpr std::string_view replacement_character = "\uFFFD";

/// A code point and its size in bytes.
struct CodePoint {
  char32_t value;
  size_t size;
};

/// The code point at `position`, which must be inside `text`. For bytes that are not UTF-8: U+FFFD
/// and the size of their maximal subpart (Unicode 15, section 3.9).
CodePoint code_point_at(std::string_view text, size_t position);

/// The size of the character whose first byte is `lead`, in valid UTF-8.
inline size_t character_size(char lead) {
  auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

size_t count_characters(std::string_view text);

void append_code_point(std::string& text, char32_t value);

/// Replaces each maximal subpart of invalid UTF-8 by U+FFFD, as Python does with errors="replace".
std::string valid_utf8(std::string_view bytes);

/// Whether the text ends with an incomplete character that further bytes may complete.
bool ends_with_part_of_character(std::string_view text);

/// The beginning of the character that ends at `end`, which must not be 0.
size_t character_before(std::string_view text, size_t end);

/// Whether the character has Unicode's White_Space property.
bool is_whitespace(char32_t value);

/// The size of trailing and leading whitespace in bytes.
size_t trailing_whitespace(std::string_view text);
size_t leading_whitespace(std::string_view text);

}  // namespace redco::text
