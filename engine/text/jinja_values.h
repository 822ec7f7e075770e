#pragma once

#include "jinja.h"

#include <redco/error.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace redco::text::jinja {

/// The longest text, and the most entries, that a template may make.
inline constexpr size_t longest_text = 1 << 26;
inline constexpr int64_t most_entries = 1'000'000;

bool is_true(const Value& value);
bool is_equal(const Value& a, const Value& b);
/// Below 0, 0 or above it, as Python orders numbers, strings and lists; Error for others.
int compare(const Value& a, const Value& b);
bool contains(const Value& whole, const Value& part);

/// A number or boolean; nothing for others.
std::optional<double> number_of(const Value& value);
std::optional<int64_t> integer_of(const Value& value);

/// The value's type for messages.
std::string kind_of(const Value& value);

/// Whether it is a list in Python, and not what only can be walked.
bool is_list_or_tuple(const Value& value);

/// The items that a loop over the value sees: of a dictionary its keys, of a string its characters.
/// Error, beginning with `what`, for what is none of these.
Value::List items_of(const Value& value, const char* what);
/// The value of `x.name`, of `x[key]`, and of a path such as "function.name".
Value attribute(const Value& owner, const std::string& name);
Value member(const Value& owner, const Value& key);
/// `fallback` stands for what is not there on the way.
Value at_path(const Value& owner, std::string_view path, const Value* fallback = nullptr);
/// The value of whole[begin:end:step]; each may be missing.
Value slice(const Value& whole, std::optional<int64_t> begin, std::optional<int64_t> end,
            std::optional<int64_t> step);

/// The value `binary` gives, of the arithmetic, comparing and joining operators.
Value apply_operator(const std::string& name, const Value& a, const Value& b);
Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments);
bool apply_test(const std::string& name, const Value& value, const Arguments& arguments);
/// The method of a string, dictionary or list, bound to it; nothing when Python has none of this
/// name, and Error when it has and it is not supported here.
std::optional<Value> find_method(const Value& value, const std::string& name);

/// An argument by position or name; null when it is missing.
const Value* argument(const Arguments& arguments, size_t index, std::string_view name);
/// The same as their types; Error for others.
const std::string& text_of(const Value& value);
std::string text_argument(const Arguments& arguments, size_t index, std::string_view name);
std::optional<int64_t> integer_argument(const Arguments& arguments, size_t index,
                                        std::string_view name);
bool flag_argument(const Arguments& arguments, size_t index, std::string_view name);

/// The entry of a table of what is supported; Error, with their names, for others.
template <class T>
const T& look_up(const std::map<std::string, T>& table, const char* what, const std::string& name) {
  auto found = table.find(name);
  if (found != table.end()) return found->second;
  std::string known;
  for (const auto& [each, entry] : table) known += (known.empty() ? "" : ", ") + each;
  fail("the ", what, " '", name, "' is not supported; supported are ", known);
}

void check_length(size_t size);

}  // namespace redco::text::jinja
