#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace redco::text {

/// One block: U+2581, which stands for a space in SentencePiece's pieces.
inline constexpr std::string_view space_symbol = "\u2581";
inline constexpr std::string_view replacement_character = "\uFFFD";

/// A code point and the bytes it takes.
struct CodePoint {
  char32_t value;
  size_t size;
};

/// The code point that starts at `position`, which must lie in `text`. Where the bytes there are
/// not UTF-8, U+FFFD and the size of their maximal subpart (Unicode 15, section 3.9).
CodePoint code_point_at(std::string_view text, size_t position);

/// The bytes of the character whose first byte is `lead`, in text that is UTF-8.
inline size_t character_size(char lead) {
  auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

size_t count_characters(std::string_view text);

void append_code_point(std::string& text, char32_t value);

/// The text with U+FFFD for each maximal subpart of bytes that are not UTF-8, as Python decodes
/// with errors="replace".
std::string valid_utf8(std::string_view bytes);

/// Whether the text ends with the first bytes of a character whose others may follow.
bool ends_with_part_of_character(std::string_view text);

/// Where the character that ends at `end` begins; `end` must not be 0.
size_t character_before(std::string_view text, size_t end);

/// Unicode's White_Space.
bool is_whitespace(char32_t value);

/// The whitespace that the text ends with, and starts with, in bytes.
size_t trailing_whitespace(std::string_view text);
size_t leading_whitespace(std::string_view text);

}  // namespace redco::text
