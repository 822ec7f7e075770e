// UTF-8: decoding, validation and whitespace.

#include "utf8.h"

#include <algorithm>

namespace redco::text {

namespace {

unsigned char byte_at(std::string_view text, size_t i) {
  return i < text.size() ? static_cast<unsigned char>(text[i]) : 0;
}

bool is_continuation(unsigned char byte) { return (byte & 0xC0) == 0x80; }

}  // namespace

CodePoint code_point_at(std::string_view text, size_t position) {
  unsigned char lead = byte_at(text, position);
  if (lead < 0x80) return {lead, 1};
  constexpr char32_t bad = 0xFFFD;
  if (lead < 0xC2 || lead > 0xF4) return {bad, 1};
  size_t size = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte of these leads has a smaller range: no overlong forms, surrogates, or values
  // beyond U+10FFFF.
  unsigned char least = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  unsigned char most = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  unsigned char second = byte_at(text, position + 1);
  if (second < least || second > most) return {bad, 1};
  char32_t value = (lead & (0x7Fu >> size)) << 6 | (second & 0x3Fu);
  for (size_t i = 2; i < size; ++i) {
    unsigned char next = byte_at(text, position + i);
    if (!is_continuation(next)) return {bad, i};
    value = value << 6 | (next & 0x3Fu);
  }
  return {value, size};
}

size_t count_characters(std::string_view text) {
  return size_t(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

void append_code_point(std::string& text, char32_t value) {
  auto byte = [&](char32_t bits) { text += char(bits); };
  if (value < 0x80) {
    byte(value);
  } else if (value < 0x800) {
    byte(0xC0 | value >> 6);
    byte(0x80 | (value & 0x3F));
  } else if (value < 0x10000) {
    byte(0xE0 | value >> 12);
    byte(0x80 | (value >> 6 & 0x3F));
    byte(0x80 | (value & 0x3F));
  } else {
    byte(0xF0 | value >> 18);
    byte(0x80 | (value >> 12 & 0x3F));
    byte(0x80 | (value >> 6 & 0x3F));
    byte(0x80 | (value & 0x3F));
  }
}

std::string valid_utf8(std::string_view bytes) {
  std::string valid;
  valid.reserve(bytes.size());
  for (size_t i = 0; i < bytes.size();) {
    CodePoint next = code_point_at(bytes, i);
    // A real U+FFFD consists of its three bytes; invalid bytes do not.
    if (next.value == 0xFFFD && bytes.substr(i, next.size) != replacement_character)
      valid += replacement_character;
    else
      valid.append(bytes, i, next.size);
    i += next.size;
  }
  return valid;
}

bool ends_with_part_of_character(std::string_view text) {
  if (text.empty()) return false;
  size_t begin = character_before(text, text.size());
  CodePoint last = code_point_at(text, begin);
  auto lead = static_cast<unsigned char>(text[begin]);
  bool is_lead = lead >= 0xC2 && lead <= 0xF4;
  // The bytes must be a valid prefix of a character.
  return is_lead && last.value == 0xFFFD && begin + last.size == text.size() &&
         last.size < character_size(text[begin]);
}

size_t character_before(std::string_view text, size_t end) {
  do --end;
  while (end > 0 && is_continuation(byte_at(text, end)));
  return end;
}

bool is_whitespace(char32_t value) {
  if (value < 0x80) return value == ' ' || (value >= '\t' && value <= '\r');
  return value == 0x85 || value == 0xA0 || value == 0x1680 ||
         (value >= 0x2000 && value <= 0x200A) || value == 0x2028 || value == 0x2029 ||
         value == 0x202F || value == 0x205F || value == 0x3000;
}

size_t trailing_whitespace(std::string_view text) {
  size_t begin = text.size();
  while (begin > 0) {
    size_t before = character_before(text, begin);
    if (!is_whitespace(code_point_at(text, before).value)) break;
    begin = before;
  }
  return text.size() - begin;
}

size_t leading_whitespace(std::string_view text) {
  size_t end = 0;
  while (end < text.size()) {
    CodePoint next = code_point_at(text, end);
    if (!is_whitespace(next.value)) break;
    end += next.size;
  }
  return end;
}

}  // namespace redco::text
