#pragma once

#include "jinja.h"

#include <map>
#include <string>
#include <vector>

namespace redco::text::jinja {

/// The arguments of a call after the value it is about.
struct Arguments {
  std::vector<Value> positional;
  std::map<std::string, Value> named;
};

bool is_true(const Value& value);
bool is_equal(const Value& a, const Value& b);
/// What an output tag shows; Error for lists and dictionaries.
std::string to_text(const Value& value);
/// JSON as Python's json.dumps writes it with ensure_ascii=False; `indent` below 0: on one line.
std::string to_json(const Value& value, int indent);
/// The value's type for messages.
std::string kind_of(const Value& value);

/// The value `binary` gives, of the arithmetic, comparing and joining operators.
Value apply_operator(const std::string& name, const Value& a, const Value& b);
Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments);
bool apply_test(const std::string& name, const Value& value, const Arguments& arguments);
Value call_method(const std::string& name, const Value& value, const Arguments& arguments);

}  // namespace redco::text::jinja
