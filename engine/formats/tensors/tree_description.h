#pragma once

#include <redco/tree.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace redco::io {

/// The key of a description in the metadata of a safetensors file.
inline const std::string tree_key = "redco.tree";

/// A tree as text, and its tensors by the names used in the text: their paths as in
/// `named_tensors`; if two paths are equal ("a.b" and b inside a), the second gets "#2". A tensor
/// at two paths has one name.
struct DescribedTree {
  std::string description;  ///< JSON
  std::map<std::string, at::Tensor> tensors;
};

/// Throws Error, beginning with `where`, for text that is not UTF-8 and a tree nested deeper than
/// 500 levels.
DescribedTree describe_tree(const Tree& tree, const std::string& where);

/// Rebuilds the tree, with `tensor_of(name)` for each of `names`. Throws Error, beginning with
/// `where`, for an invalid description, and unless it uses exactly these names.
Tree read_tree(const std::string& description, const std::string& where,
               const std::vector<std::string>& names,
               const std::function<at::Tensor(const std::string& name)>& tensor_of);

}  // namespace redco::io
