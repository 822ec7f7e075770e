#pragma once

#include "jinja.h"

#include <string>
#include <string_view>
#include <vector>

namespace redco::text::jinja {

/// The value as Python's str and repr write it; Error for functions.
std::string to_text(const Value& value);
std::string to_repr(const Value& value);

/// JSON as Python's json.dumps writes it.
struct JsonStyle {
  bool ensure_ascii = false;
  int indent = -1;  ///< below 0: on one line
  bool sort_keys = false;
  std::string between_items = ", ";
  std::string after_key = ": ";
};
std::string to_json(const Value& value, const JsonStyle& style);

/// Python's `text % values` and `text.format(...)`.
std::string formatted(const std::string& text, const std::vector<Value>& values);
std::string format_fields(const std::string& text, const Arguments& arguments);

/// The characters of a text.
std::vector<std::string> characters(std::string_view text);
/// The lines of a text as Python's splitlines cuts it.
std::vector<std::string> lines_of(std::string_view text, bool keep_ends = false);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
/// The first character in upper case, the others in lower case.
std::string capitalized(std::string_view text);
/// As the filter and as the method of strings write titles.
std::string title_of_words(std::string_view text);
std::string title_of_letters(std::string_view text);

}  // namespace redco::text::jinja
