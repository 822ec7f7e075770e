// Trees of tensors and plain values.

#include <redco/tree.h>

#include <redco/detail/article.h>
#include <redco/error.h>

namespace redco {

const char* Tree::kind() const {
  static constexpr const char* names[] = {"none",   "boolean", "integer", "number",
                                          "string", "tensor",  "list",    "dictionary"};
  return names[value_.index()];
}

void Tree::throw_kind(const char* expected) const {
  fail("expected ", with_article(expected), " in this place of the tree, found ",
       with_article(kind()));
}

const Tree& Tree::at(const std::string& key) const {
  const Dict& dict = as<Dict>();
  auto found = dict.find(key);
  if (found != dict.end()) return found->second;
  std::string keys;
  for (const auto& [name, _] : dict) keys += (keys.empty() ? "" : ", ") + name;
  fail("no entry '", key, "' in a dictionary with the keys: ", keys);
}

Tree& Tree::operator[](const std::string& key) {
  if (is_none()) value_ = Dict{};
  return as<Dict>()[key];
}

namespace {

std::string join(const std::string& path, const std::string& key) {
  return path.empty() ? key : path + "." + key;
}

void visit_leaves(const std::string& path, const Tree& tree,
                  const std::function<void(const std::string&, const Tree&)>& visit) {
  if (tree.is<Tree::Dict>()) {
    for (const auto& [key, child] : tree.as<Tree::Dict>())
      visit_leaves(join(path, key), child, visit);
  } else if (tree.is<Tree::List>()) {
    size_t position = 0;
    for (const auto& child : tree.as<Tree::List>())
      visit_leaves(join(path, std::to_string(++position)), child, visit);
  } else {
    visit(path, tree);
  }
}

Tree map_leaves(const std::string& path, const Tree& tree,
                const std::function<at::Tensor(const std::string&, const at::Tensor&)>& function) {
  if (tree.is<Tree::Dict>()) {
    Tree::Dict dict;
    for (const auto& [key, child] : tree.as<Tree::Dict>())
      dict.emplace_hint(dict.end(), key, map_leaves(join(path, key), child, function));
    return dict;
  }
  if (tree.is<Tree::List>()) {
    Tree::List list;
    for (const auto& child : tree.as<Tree::List>())
      list.push_back(map_leaves(join(path, std::to_string(list.size() + 1)), child, function));
    return list;
  }
  return tree.is_tensor() ? Tree(function(path, tree.tensor())) : tree;
}

}  // namespace

void for_each_leaf(const Tree& tree,
                   const std::function<void(const std::string&, const Tree&)>& visit) {
  visit_leaves("", tree, visit);
}

std::vector<NamedTensor> named_tensors(const Tree& tree) {
  std::vector<NamedTensor> found;
  for_each_leaf(tree, [&](const std::string& path, const Tree& leaf) {
    if (leaf.is_tensor()) found.emplace_back(path, leaf.tensor());
  });
  return found;
}

Tree map_tensors(const Tree& tree,
                 const std::function<at::Tensor(const std::string&, const at::Tensor&)>& function) {
  return map_leaves("", tree, function);
}

Tree with_tensors(const Tree& tree, const std::vector<at::Tensor>& tensors) {
  size_t next = 0;
  Tree result = map_tensors(tree, [&](const std::string& path, const at::Tensor&) {
    require(next < tensors.size(), "with_tensors: no tensor left for '", path,
            "': the tree has more than the ", tensors.size(), " given");
    return tensors[next++];
  });
  require(next == tensors.size(), "with_tensors: the tree has ", next, " tensors, but ",
          tensors.size(), " were given");
  return result;
}

bool is_same_tensor(const at::Tensor& a, const at::Tensor& b) {
  return a.is_same(b) || (a.has_storage() && b.has_storage() && a.is_alias_of(b) &&
                          a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() &&
                          a.strides() == b.strides() && a.dtype() == b.dtype() && a.numel() > 0);
}

const void* memory_key(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl()
                              : static_cast<const void*>(tensor.unsafeGetTensorImpl());
}

}  // namespace redco
