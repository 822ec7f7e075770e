#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace redco::text {

/// A value of a JSON file with its path, for messages: "tokenizer.json: model.unk_id: expected an
/// integer, got ...". It refers to the parsed file.
class JsonField {
 public:
  JsonField(const nlohmann::json& value, std::string where, std::string path = "")
      : value_(&value), where_(std::move(where)), path_(std::move(path)) {}

  const nlohmann::json& json() const { return *value_; }
  /// The prefix of messages: the file and the path of keys.
  std::string where() const { return path_.empty() ? where_ : where_ + path_ + ": "; }

  /// The member of an object. If it is missing, `at` throws Error and `find` returns none; `find`
  /// also returns none for null.
  JsonField at(const std::string& key) const;
  std::optional<JsonField> find(const std::string& key) const;

  /// The value as a type; throws Error if it has another.
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
