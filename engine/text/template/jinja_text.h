#pragma once

#include "jinja.h"

#include <string>
#include <string_view>
#include <vector>

namespace redco::text::jinja {

/// The value as in Python's str and repr; throws Error for functions.
std::string to_text(const Value& value);
std::string to_repr(const Value& value);

/// JSON as in Python's json.dumps.
struct JsonStyle {
  bool ensure_ascii = false;
  int indent = -1;  ///< negative: on one line
  bool sort_keys = false;
  std::string between_items = ", ";
  std::string after_key = ": ";
};
std::string to_json(const Value& value, const JsonStyle& style);

/// Python's `text % values` and `text.format(...)`.
Value formatted(const Value& text, const std::vector<Value>& values);
std::string format_fields(const std::string& text, const Arguments& arguments);

/// The characters of a text.
std::vector<std::string> characters(std::string_view text);
/// The lines of a text as in Python's splitlines.
std::vector<std::string> lines_of(std::string_view text, bool keep_ends = false);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
/// Converts the first character to upper case, the others to lower case.
std::string capitalized(std::string_view text);
/// Title case as in the filter and as in the string method.
std::string title_of_words(std::string_view text);
std::string title_of_letters(std::string_view text);

}  // namespace redco::text::jinja
