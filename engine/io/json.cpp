#include <redco/json.h>

#include "strict_json.h"

#include <redco/error.h>

#include <cmath>
#include <limits>
#include <utility>

namespace redco {

namespace {

using nlohmann::json;

constexpr int kMaxDepth = 500;

Tree tree_of(const json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_unsigned() &&
      value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()})
    return value.get<double>();
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_number()) return value.get<double>();
  if (value.is_array()) {
    Tree::List list;
    for (const json& child : value) list.push_back(tree_of(child));
    return list;
  }
  if (value.is_object()) {
    Tree::Dict dict;
    for (const auto& [key, child] : value.items()) dict.emplace(key, tree_of(child));
    return dict;
  }
  return {};
}

json json_of(const std::string& where, const Tree& tree, int depth) {
  require(depth <= kMaxDepth, where, "nested deeper than ", kMaxDepth, " levels");
  if (tree.is<bool>()) return tree.as<bool>();
  if (tree.is<int64_t>()) return tree.as<int64_t>();
  if (tree.is<double>()) {
    require(std::isfinite(tree.as<double>()), where, "JSON has no number for ", tree.as<double>());
    return tree.as<double>();
  }
  if (tree.is<std::string>()) {
    json_string(where, tree.as<std::string>());
    return tree.as<std::string>();
  }
  require(!tree.is_tensor(), where, "JSON has no tensors");
  if (tree.is<Tree::List>() && !tree.as<Tree::List>().empty()) {
    json list = json::array();
    for (const Tree& child : tree.as<Tree::List>())
      list.push_back(json_of(where, child, depth + 1));
    return list;
  }
  if (tree.is_none()) return nullptr;
  json object = json::object();
  if (tree.is<Tree::Dict>()) {
    for (const auto& [key, child] : tree.as<Tree::Dict>()) {
      json_string(where, key);
      object[key] = json_of(where, child, depth + 1);
    }
  }
  return object;
}

}  // namespace

Tree tree_from_json(const std::string& where, std::string_view text) {
  return tree_of(parse_json(where, text, kMaxDepth));
}

std::string json_from_tree(const std::string& where, const Tree& tree, int indent) {
  return json_of(where, tree, 0).dump(indent);
}

}  // namespace redco
