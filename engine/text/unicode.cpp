// Lower case and general categories, for metrics and chat templates.

#include <redco/detail/unicode.h>

#include "utf8.h"

#include <utf8proc.h>

namespace redco {

using text::CodePoint;

namespace {

constexpr char32_t capital_sigma = 0x3A3;
constexpr const char* final_sigma = "\u03C2";

bool is_between(char32_t c, char32_t first, char32_t last) { return first <= c && c <= last; }

// Unicode's property Cased, of characters that are not Case_Ignorable.
bool is_cased(char32_t c) {
  auto code = static_cast<utf8proc_int32_t>(c);
  switch (utf8proc_category(code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
      return true;
    default:
      break;
  }
  // Numerals and symbols with an upper and a lower case; then those with one case.
  if (utf8proc_tolower(code) != code || utf8proc_toupper(code) != code) return true;
  return c == 0xAA || c == 0xBA || is_between(c, 0x1F130, 0x1F149) ||
         is_between(c, 0x1F150, 0x1F169) || is_between(c, 0x1F170, 0x1F189);
}

// Apostrophes, points and colons in and between the letters of a word: Word_Break is MidLetter,
// MidNumLet or Single_Quote.
constexpr std::u32string_view word_punctuation =
    U"'.:\u00B7\u0387\u055F\u05F4\u2018\u2019\u2024\u2027\uFE13\uFE52\uFE55\uFF07\uFF0E\uFF1A";

// Unicode's property Case_Ignorable.
bool is_case_ignorable(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return word_punctuation.find(c) != word_punctuation.npos;
  }
}

bool has_letter_before(std::string_view text, size_t end) {
  while (end > 0) {
    end = text::character_before(text, end);
    char32_t c = text::code_point_at(text, end).value;
    if (!is_case_ignorable(c)) return is_cased(c);
  }
  return false;
}

bool has_letter_from(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    CodePoint c = text::code_point_at(text, begin);
    if (!is_case_ignorable(c.value)) return is_cased(c.value);
    begin += c.size;
  }
  return false;
}

}  // namespace

std::string upper_case(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    CodePoint c = text::code_point_at(text, i);
    if (c.value == 0xDF)
      result += "SS";
    else if (c.value == 0xFFFD)
      result += text.substr(i, c.size);
    else
      text::append_code_point(
          result, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c.value))));
    i += c.size;
  }
  return result;
}

std::string lower_case(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    CodePoint c = text::code_point_at(text, i);
    size_t end = i + c.size;
    if (c.value == capital_sigma && has_letter_before(text, i) && !has_letter_from(text, end))
      result += final_sigma;
    else if (c.value == 0x130)
      result += "i\u0307";  // the only character whose lower case has two characters
    else if (c.value == 0xFFFD)
      result += text.substr(i, c.size);  // perhaps bytes that are not UTF-8
    else
      text::append_code_point(
          result, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c.value))));
    i = end;
  }
  return result;
}

std::string_view general_category(std::string_view text) {
  if (text.empty()) return "Cn";
  CodePoint c = text::code_point_at(text, 0);
  if (c.value == 0xFFFD && text.substr(0, c.size) != text::replacement_character) return "Cn";
  return utf8proc_category_string(static_cast<utf8proc_int32_t>(c.value));
}

}  // namespace redco
