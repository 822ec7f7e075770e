// Reads and writes JSON.

#include <redco/json.h>

#include "strict_json.h"

#include <redco/error.h>

#include <cmath>
#include <limits>
#include <set>
#include <utility>

namespace redco {

using namespace io;

namespace {

using nlohmann::json;

constexpr int max_depth = 500;

// Builds a Json from the parser's events. The parser's own values would sort the keys.
class JsonBuilder final : public nlohmann::json_sax<json> {
 public:
  explicit JsonBuilder(const std::string& where) : where_(where) {}

  Json take() { return std::move(root_); }

  bool null() override { return add({}); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > uint64_t{std::numeric_limits<int64_t>::max()}) return add(double(value));
    return add(int64_t(value));
  }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return false; }

  bool start_object(size_t) override { return open(Json(Json::Object())); }
  bool key(string_t& name) override {
    require(open_.back().keys.insert(name).second, where_, "the key ", in_quotes(name),
            " is there twice, expected once");
    open_.back().key = std::move(name);
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(size_t) override { return open(Json(Json::List())); }
  bool end_array() override { return close(); }

  bool parse_error(size_t, const std::string&, const json::exception& error) override {
    fail_to_parse(where_, error);
  }

 private:
  // An unfinished list or object.
  struct Open {
    Json value;
    std::string key;             ///< of the next entry
    std::set<std::string> keys;  ///< the keys so far
  };

  bool open(Json value) {
    require(open_.size() < max_depth, where_, "nested deeper than the ", max_depth,
            " levels expected");
    open_.push_back({std::move(value), {}, {}});
    return true;
  }

  bool close() {
    Json value = std::move(open_.back().value);
    open_.pop_back();
    return add(std::move(value));
  }

  bool add(Json value) {
    if (open_.empty())
      root_ = std::move(value);
    else if (auto* list = std::get_if<Json::List>(&open_.back().value.value))
      list->push_back(std::move(value));
    else
      std::get<Json::Object>(open_.back().value.value)
          .emplace_back(std::move(open_.back().key), std::move(value));
    return true;
  }

  const std::string& where_;
  std::vector<Open> open_;
  Json root_;
};

class JsonWriter {
 public:
  JsonWriter(const std::string& where, int indent) : where_(where), indent_(indent) {}

  void write(const Json& value, int depth = 0) {
    require(depth <= max_depth, where_, "nested deeper than ", max_depth, " levels");
    if (auto list = value.get<Json::List>()) {
      write_all(*list, '[', ']', depth, [&](const Json& entry) { write(entry, depth + 1); });
    } else if (auto object = value.get<Json::Object>()) {
      write_all(*object, '{', '}', depth, [&](const auto& entry) {
        text_ += json_string(where_, entry.first) + (indent_ < 0 ? ":" : ": ");
        write(entry.second, depth + 1);
      });
    } else if (auto text = value.get<std::string>()) {
      text_ += json_string(where_, *text);
    } else if (auto real = value.get<double>()) {
      require(std::isfinite(*real), where_, "JSON has no number for ", *real);
      text_ += json(*real).dump();
    } else if (auto integer = value.get<int64_t>()) {
      text_ += std::to_string(*integer);
    } else {
      auto boolean = value.get<bool>();
      text_ += boolean == nullptr ? "null" : *boolean ? "true" : "false";
    }
  }

  std::string take() { return std::move(text_); }

 private:
  template <class Entries, class Write>
  void write_all(const Entries& entries, char begin, char end, int depth, Write write_entry) {
    text_ += begin;
    bool is_first = true;
    for (const auto& entry : entries) {
      if (!is_first) text_ += ',';
      is_first = false;
      break_line(depth + 1);
      write_entry(entry);
    }
    if (!entries.empty()) break_line(depth);
    text_ += end;
  }

  void break_line(int depth) {
    if (indent_ < 0) return;
    text_ += '\n';
    text_.append(size_t(indent_) * size_t(depth), ' ');
  }

  const std::string& where_;
  int indent_;
  std::string text_;
};

Tree tree_of(Json value) {
  if (auto list = std::get_if<Json::List>(&value.value)) {
    Tree::List entries;
    for (Json& entry : *list) entries.push_back(tree_of(std::move(entry)));
    return entries;
  }
  if (auto object = std::get_if<Json::Object>(&value.value)) {
    Tree::Dict entries;
    for (auto& [key, entry] : *object) entries.emplace(key, tree_of(std::move(entry)));
    return entries;
  }
  if (auto text = std::get_if<std::string>(&value.value)) return std::move(*text);
  if (auto real = value.get<double>()) return *real;
  if (auto integer = value.get<int64_t>()) return *integer;
  if (auto boolean = value.get<bool>()) return *boolean;
  return {};
}

Json json_of(const std::string& where, const Tree& tree, int depth) {
  require(depth <= max_depth, where, "nested deeper than ", max_depth, " levels");
  require(!tree.is_tensor(), where, "JSON has no tensors");
  if (tree.is<bool>()) return tree.as<bool>();
  if (tree.is<int64_t>()) return tree.as<int64_t>();
  if (tree.is<double>()) return tree.as<double>();
  if (tree.is<std::string>()) return tree.as<std::string>();
  if (tree.is_none()) return {};
  if (tree.is<Tree::List>() && !tree.as<Tree::List>().empty()) {
    Json::List list;
    for (const Tree& entry : tree.as<Tree::List>())
      list.push_back(json_of(where, entry, depth + 1));
    return list;
  }
  Json::Object object;
  if (tree.is<Tree::Dict>())
    for (const auto& [key, entry] : tree.as<Tree::Dict>())
      object.emplace_back(key, json_of(where, entry, depth + 1));
  return object;
}

}  // namespace

Json read_json(const std::string& where, std::string_view text) {
  check_no_zero_byte(where, text);
  JsonBuilder builder(where);
  json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

std::string write_json(const std::string& where, const Json& value, int indent) {
  JsonWriter writer(where, indent);
  writer.write(value);
  return writer.take();
}

Tree tree_from_json(const std::string& where, std::string_view text) {
  return tree_of(read_json(where, text));
}

std::string json_from_tree(const std::string& where, const Tree& tree, int indent) {
  return write_json(where, json_of(where, tree, 0), indent);
}

}  // namespace redco
