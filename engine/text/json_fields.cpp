// Typed access to JSON files, with paths in error messages.

#include "json_fields.h"

#include "../io/strict_json.h"

#include <redco/error.h>

namespace redco::text {

using namespace io;

void JsonField::fail_expecting(const std::string& what) const {
  using nlohmann::json;
  std::string got = value_->dump(-1, ' ', false, json::error_handler_t::replace);
  fail(where(), "expected ", what, ", got ", excerpt(got));
}

std::optional<JsonField> JsonField::find(const std::string& key) const {
  if (!value_->is_object()) fail_expecting("an object");
  auto found = value_->find(key);
  if (found == value_->end() || found->is_null()) return std::nullopt;
  return JsonField(*found, where_, path_.empty() ? key : path_ + "." + key);
}

JsonField JsonField::at(const std::string& key) const {
  auto found = find(key);
  require(found.has_value(), where(), "the key '", key, "' is missing");
  return *found;
}

std::string JsonField::text() const {
  if (!value_->is_string()) fail_expecting("a string");
  return value_->get<std::string>();
}

bool JsonField::boolean() const {
  if (!value_->is_boolean()) fail_expecting("true or false");
  return value_->get<bool>();
}

int64_t JsonField::integer() const {
  bool fits = value_->is_number_unsigned() ? value_->get<uint64_t>() <= INT64_MAX
                                           : value_->is_number_integer();
  if (!fits) fail_expecting("an integer");
  return value_->get<int64_t>();
}

double JsonField::number() const {
  if (!value_->is_number()) fail_expecting("a number");
  return value_->get<double>();
}

std::vector<JsonField> JsonField::items() const {
  if (!value_->is_array()) fail_expecting("a list");
  std::vector<JsonField> items;
  for (size_t i = 0; i < value_->size(); ++i)
    items.emplace_back((*value_)[i], where_, path_ + "[" + std::to_string(i) + "]");
  return items;
}

std::string JsonField::text(const std::string& key, const std::string& fallback) const {
  auto field = find(key);
  return field ? field->text() : fallback;
}

bool JsonField::boolean(const std::string& key, bool fallback) const {
  auto field = find(key);
  return field ? field->boolean() : fallback;
}

}  // namespace redco::text
