#pragma once

#include "jinja.h"

#include <redco/error.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace redco::text::jinja {

/// The longest text and the maximum number of entries that a template may create.
inline constexpr size_t longest_text = 1 << 26;
inline constexpr int64_t most_entries = 1'000'000;

/// The state of a Function that is a method of a value.
struct BoundMethod {
  Value of;
  std::string name;
  Value::Function call;
  Value operator()(const Arguments& arguments) const { return call(arguments); }
};

/// Lists that nest deeper than this are an error.
constexpr int deepest = 100;

bool is_true(const Value& value);
bool is_equal(const Value& a, const Value& b);
/// Returns a value below, equal to or above 0, as Python orders numbers, strings and lists; throws
/// Error for others.
int compare(const Value& a, const Value& b);
bool contains(const Value& whole, const Value& part);

/// The value of a number or boolean; none for others.
std::optional<double> number_of(const Value& value);
std::optional<int64_t> integer_of(const Value& value);

/// Text, which is markup if another value is; and the text of a value as markup has it.
Value text_like(std::string text, const Value& other);
Value as_markup(std::string text);
bool is_markup(const Value& value);
std::string escaped(const Value& value);

/// Throws Error, beginning with `what`, for lists and dictionaries, which Python cannot hash.
void require_hash(const Value& value, const char* what);
/// Sets or adds a member. Throws Error for a key without a hash.
void set_member(Value::Dict& members, const Value& key, Value value);
void set_member(Value::Named& members, const std::string& name, Value value);

/// The value's type for messages.
std::string kind_of(const Value& value);

/// Whether it is a list or tuple in Python, not just an iterable.
bool is_list_or_tuple(const Value& value);

/// Whether `items_of` has the items of the value.
bool has_items(const Value& value);
/// The items of a loop over the value: the keys of a dictionary, the characters of a string. Throws
/// Error, beginning with `what`, for values that are not iterable.
Value::List items_of(const Value& value, const char* what);
/// The value of `x.name`, of `x[key]`, and of a path such as "function.name".
Value attribute(const Value& owner, const std::string& name);
Value member(const Value& owner, const Value& key);
/// `fallback` replaces missing members on the path.
Value at_path(const Value& owner, std::string_view path, const Value* fallback = nullptr);
/// The value of whole[begin:end:step]; each bound may be missing.
Value slice(const Value& whole, std::optional<int64_t> begin, std::optional<int64_t> end,
            std::optional<int64_t> step);

/// Applies a binary operator: arithmetic, comparison or concatenation.
Value apply_operator(const std::string& name, const Value& a, const Value& b);
Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments);
bool apply_test(const std::string& name, const Value& value, const Arguments& arguments);
/// The method of a string, dictionary or list, bound to it; none if Python has no method of this
/// name. Throws Error if Python has it but it is not supported here.
std::optional<Value> find_method(const Value& value, const std::string& name);

/// An argument by position or name; null if it is missing.
const Value* argument(const Arguments& arguments, size_t index, std::string_view name);
/// The same, converted to a type; throw Error for other types.
const std::string& text_of(const Value& value);
std::string text_argument(const Arguments& arguments, size_t index, std::string_view name);
std::optional<int64_t> integer_argument(const Arguments& arguments, size_t index,
                                        std::string_view name);
bool flag_argument(const Arguments& arguments, size_t index, std::string_view name);

/// Looks up an entry of a table; throws Error, which lists the names in the table, if it is
/// missing.
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
