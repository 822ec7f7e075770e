#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace redco::text {

/// A value of a JSON file that knows its place there, for messages: "tokenizer.json: model.unk_id:
/// expected an integer, got ...". It refers to the parsed file.
class JsonField {
 public:
  JsonField(const nlohmann::json& value, std::string where, std::string path = "")
      : value_(&value), where_(std::move(where)), path_(std::move(path)) {}

  const nlohmann::json& json() const { return *value_; }
  /// What messages begin with: the file and the path of keys.
  std::string where() const { return path_.empty() ? where_ : where_ + path_ + ": "; }

  /// The member of an object; the first throws Error when there is none, the second has none
  /// either where it is null.
  JsonField at(const std::string& key) const;
  std::optional<JsonField> find(const std::string& key) const;

  /// The value as its type; Error when it is something else.
  std::string text() const;
  bool boolean() const;
  int64_t integer() const;
  double number() const;
  std::vector<JsonField> items() const;

  std::string text(const std::string& key, const std::string& fallback) const;
  bool boolean(const std::string& key, bool fallback) const;

  [[noreturn]] void fail_expecting(const std::string& what) const;

 private:
  const nlohmann::json* value_;
  std::string where_;
  std::string path_;
};

}  // namespace redco::text
