#include <redco/json.h>

#include "strict_json.h"

#include <cstdint>
#include <limits>
#include <utility>

namespace redco {

namespace {

Tree tree_of(const nlohmann::json& json) {
  if (json.is_object()) {
    Tree::Dict dict;
    for (const auto& [key, value] : json.items()) dict.emplace(key, tree_of(value));
    return Tree(std::move(dict));
  }
  if (json.is_array()) {
    Tree::List list;
    for (const nlohmann::json& value : json) list.push_back(tree_of(value));
    return Tree(std::move(list));
  }
  if (json.is_string()) return Tree(json.get<std::string>());
  if (json.is_boolean()) return Tree(json.get<bool>());
  // An integer beyond int64_t is a number like any other.
  if (json.is_number_unsigned() && json.get<uint64_t>() > std::numeric_limits<int64_t>::max())
    return Tree(json.get<double>());
  if (json.is_number_integer()) return Tree(json.get<int64_t>());
  if (json.is_number()) return Tree(json.get<double>());
  return Tree();
}

}  // namespace

Tree decode_json(const std::string& name, std::string_view text) {
  return tree_of(parse_json(name + ": ", text, 100));
}

}  // namespace redco
