#pragma once

#include <redco/export.h>
#include <redco/tree.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace redco {

/// A JSON value. Objects keep their keys in order.
struct Json {
  using List = std::vector<Json>;
  using Object = std::vector<std::pair<std::string, Json>>;

  std::variant<std::monostate, bool, int64_t, double, std::string, List, Object> value;

  Json() = default;  ///< null
  Json(bool given) : value(given) {}
  Json(int given) : value(int64_t{given}) {}
  Json(int64_t given) : value(given) {}
  Json(double given) : value(given) {}
  Json(const char* given) : value(std::string(given)) {}
  Json(std::string given) : value(std::move(given)) {}
  Json(List given) : value(std::move(given)) {}
  Json(Object given) : value(std::move(given)) {}

  /// Returns null if the value has another type.
  template <class T>
  const T* get() const {
    return std::get_if<T>(&value);
  }
};

/// Parses a JSON text. Whole numbers that fit in int64 become integers. Throws Error, its text
/// beginning with `where`, for invalid JSON, a duplicate key and more than 500 levels of nesting.
REDCO_API Json read_json(const std::string& where, std::string_view text);

/// Writes a value as JSON, indented by `indent` spaces per level or, if that is negative, on one
/// line. Throws Error, beginning with `where`, for numbers that are not finite, text that is not
/// UTF-8 and more than 500 levels of nesting.
REDCO_API std::string write_json(const std::string& where, const Json& value, int indent = -1);

/// The same for trees, whose keys are sorted. JSON's null becomes none. An empty list or dictionary
/// is written as an object; a tensor is an error.
REDCO_API Tree tree_from_json(const std::string& where, std::string_view text);
REDCO_API std::string json_from_tree(const std::string& where, const Tree& tree, int indent = -1);

}  // namespace redco
