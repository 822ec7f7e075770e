// Converts trees to JSON descriptions with named tensors, and back.

#include "tree_description.h"

#include "../../io/strict_json.h"

#include <redco/error.h>
#include <redco/formats.h>

#include <cmath>
#include <limits>
#include <set>
#include <utility>

namespace redco::io {

namespace {

using nlohmann::json;

// Reading and writing recurse, and a file determines the depth of reading.
constexpr int max_tree_depth = 500;

// Values of JSON represent themselves: null, true, 12, 1.5, "text". Other values are objects of one
// key that names the kind: {"tensor": NAME}, {"list": [...]}, {"dict": {...}} and, for numbers that
// JSON lacks, {"number": "nan"}. The whole is {"format": 1, "tree": ...}.
json tagged(const char* kind, json value) {
  json object = json::object();
  object[kind] = std::move(value);
  return object;
}

class TreeWriter {
 public:
  explicit TreeWriter(std::string where) : where_(std::move(where)) {}

  json write(const Tree& tree, const std::string& path, int depth) {
    if (tree.is_none()) return nullptr;
    if (tree.is<bool>()) return tree.as<bool>();
    if (tree.is<int64_t>()) return tree.as<int64_t>();
    if (tree.is<double>()) return number(tree.as<double>());
    if (tree.is<std::string>()) return text(tree.as<std::string>(), path);
    if (tree.is_tensor()) return tagged("tensor", add(path, tree.tensor()));
    require(depth < max_tree_depth, where_, "the tree is nested deeper than ", max_tree_depth,
            " levels at ", in_quotes(path));
    auto below = [&](const std::string& key) { return path.empty() ? key : path + "." + key; };
    if (tree.is<Tree::List>()) {
      json list = json::array();
      for (const Tree& child : tree.as<Tree::List>())
        list.push_back(write(child, below(std::to_string(list.size() + 1)), depth + 1));
      return tagged("list", std::move(list));
    }
    json dict = json::object();
    for (const auto& [key, child] : tree.as<Tree::Dict>())
      dict[text(key, path)] = write(child, below(key), depth + 1);
    return tagged("dict", std::move(dict));
  }

  std::map<std::string, at::Tensor>& tensors() { return tensors_; }

 private:
  static json number(double value) {
    if (std::isfinite(value)) return value;
    return tagged("number", std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
  }

  const std::string& text(const std::string& value, const std::string& path) const {
    json_string(where_ + "at " + in_quotes(path) + " of the tree: ", value);
    return value;
  }

  std::string add(const std::string& path, const at::Tensor& tensor) {
    auto [same, last] = names_.equal_range(memory_key(tensor));
    for (; same != last; ++same)
      if (is_same_tensor(tensors_.at(same->second), tensor)) return same->second;
    std::string first = path.empty() ? "tensor" : path;
    std::string name = first;
    for (int i = 2; name == "__metadata__" || tensors_.count(name) != 0; ++i)
      name = first + "#" + std::to_string(i);
    tensors_.emplace(name, tensor);
    names_.emplace(memory_key(tensor), name);
    return name;
  }

  std::string where_;
  std::map<std::string, at::Tensor> tensors_;
  std::multimap<const void*, std::string> names_;
};

class TreeReader {
 public:
  using TensorOf = std::function<at::Tensor(const std::string& name)>;

  TreeReader(std::string where, const std::vector<std::string>& names, const TensorOf& tensor_of)
      : where_(std::move(where)), names_(names.begin(), names.end()), tensor_of_(tensor_of) {}

  Tree read(const json& value) {
    if (value.is_null()) return {};
    if (value.is_boolean()) return value.get<bool>();
    if (value.is_number_float()) return value.get<double>();
    if (value.is_string()) return value.get<std::string>();
    if (value.is_number_integer()) {
      require(!value.is_number_unsigned() ||
                  value.get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()},
              where_, "the integer ", value.dump(), " is beyond 2^63-1");
      return value.get<int64_t>();
    }
    if (value.is_object() && value.size() == 1) {
      const std::string& kind = value.begin().key();
      const json& content = value.begin().value();
      if (kind == "tensor" && content.is_string()) return tensor(content.get<std::string>());
      if (kind == "list" && content.is_array()) {
        Tree::List list;
        for (const json& child : content) list.push_back(read(child));
        return list;
      }
      if (kind == "dict" && content.is_object()) {
        Tree::Dict dict;
        for (const auto& [key, child] : content.items()) dict.emplace(key, read(child));
        return dict;
      }
      if (kind == "number") {
        if (content == "nan") return std::numeric_limits<double>::quiet_NaN();
        if (content == "inf") return std::numeric_limits<double>::infinity();
        if (content == "-inf") return -std::numeric_limits<double>::infinity();
      }
    }
    fail(where_, "found ", excerpt(value.dump()),
         ", expected a plain value or an object with one of tensor, list, dict and number");
  }

  void require_all_used() const {
    for (const std::string& name : names_)
      require(tensors_.count(name) != 0, where_, "no place for the tensor ", in_quotes(name));
  }

 private:
  Tree tensor(const std::string& name) {
    auto [place, is_new] = tensors_.try_emplace(name);
    if (is_new) {
      require(names_.count(name) != 0, where_, "the tensor ", in_quotes(name),
              " is not in the file");
      place->second = tensor_of_(name);
    }
    return place->second;
  }

  std::string where_;
  std::set<std::string> names_;
  const TensorOf& tensor_of_;
  std::map<std::string, at::Tensor> tensors_;
};

}  // namespace

DescribedTree describe_tree(const Tree& tree, const std::string& where) {
  TreeWriter writer(where);
  json description = {{"format", tree_format}, {"tree", writer.write(tree, "", 0)}};
  return {description.dump(), std::move(writer.tensors())};
}

Tree read_tree(const std::string& description, const std::string& where,
               const std::vector<std::string>& names,
               const std::function<at::Tensor(const std::string& name)>& tensor_of) {
  TreeReader reader(where, names, tensor_of);
  // A level of the tree takes two levels of JSON, except for a leaf; the outermost object takes one
  // more.
  json whole = parse_json(where, description, 2 * max_tree_depth + 2);
  bool has_format =
      whole.is_object() && whole.contains("format") && whole["format"].is_number_integer();
  check_format(where, has_format ? whole["format"].get<int64_t>() : 0, tree_format);
  require(whole.contains("tree"), where, "the field tree is missing");
  Tree tree = reader.read(whole["tree"]);
  reader.require_all_used();
  return tree;
}

}  // namespace redco::io
