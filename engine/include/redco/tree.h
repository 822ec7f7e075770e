#pragma once

#include <redco/export.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace redco {

/// Nested lists and dictionaries with tensors and plain values as leaves: parameters, batches,
/// predictions, optimizer states. Dictionaries are ordered by the bytes of their keys, so every
/// process walks a tree in the same order.
class REDCO_API Tree {
 public:
  using List = std::vector<Tree>;
  using Dict = std::map<std::string, Tree>;

  Tree() = default;
  Tree(bool value) : value_(value) {}
  Tree(int value) : value_(int64_t{value}) {}
  Tree(int64_t value) : value_(value) {}
  Tree(double value) : value_(value) {}
  Tree(const char* value) : value_(std::string(value)) {}
  Tree(std::string value) : value_(std::move(value)) {}
  Tree(at::Tensor value) : value_(std::move(value)) {}
  Tree(List value) : value_(std::move(value)) {}
  Tree(Dict value) : value_(std::move(value)) {}

  template <class T>
  bool is() const {
    return std::holds_alternative<T>(value_);
  }
  /// A reference to the value. A double is returned by value, and an integer converts to it, since
  /// Lua's 2 and 2.0 are the same number. Throws Error, which names both kinds, if the value has
  /// another type.
  template <class T>
  decltype(auto) as() const {
    if constexpr (std::is_same_v<T, double>) {
      const int64_t* whole = std::get_if<int64_t>(&value_);
      return whole ? double(*whole) : held<double>();
    } else {
      return held<T>();
    }
  }
  template <class T>
  decltype(auto) as() {
    if constexpr (std::is_same_v<T, double>)
      return std::as_const(*this).as<double>();
    else
      return const_cast<T&>(held<T>());
  }
  bool is_none() const { return is<std::monostate>(); }
  bool is_tensor() const { return is<at::Tensor>(); }
  const at::Tensor& tensor() const { return as<at::Tensor>(); }

  /// "none", "boolean", "integer", "number", "string", "tensor", "list" or "dictionary".
  const char* kind() const;

  /// The entry of a dictionary. Throws Error, which lists the existing keys, if `key` is missing.
  const Tree& at(const std::string& key) const;
  Tree& at(const std::string& key) { return const_cast<Tree&>(std::as_const(*this).at(key)); }
  /// The entry of a dictionary, created if missing; an empty tree becomes a dictionary.
  Tree& operator[](const std::string& key);

 private:
  template <class T>
  const T& held() const {
    if (const T* value = std::get_if<T>(&value_)) return *value;
    throw_kind(Tree(T{}).kind());
  }
  [[noreturn]] void throw_kind(const char* expected) const;

  std::variant<std::monostate, bool, int64_t, double, std::string, at::Tensor, List, Dict> value_;
};

/// A tensor and its path in a tree: dictionary keys and list positions (from 1, as in Lua) joined
/// by dots.
using NamedTensor = std::pair<std::string, at::Tensor>;

/// Calls `visit(path, leaf)` on every leaf, in order; lists and dictionaries are not leaves.
REDCO_API void for_each_leaf(const Tree& tree,
                             const std::function<void(const std::string&, const Tree&)>& visit);

/// The tensors of a tree with their paths, in order. Other leaves are skipped.
REDCO_API std::vector<NamedTensor> named_tensors(const Tree& tree);

/// The same tree with `function(path, tensor)` in place of each tensor; other leaves are kept.
REDCO_API Tree
map_tensors(const Tree& tree,
            const std::function<at::Tensor(const std::string& path, const at::Tensor&)>& function);

/// Whether both tensors are the same view of the same memory, as tied weights are. Such tensors
/// have the same `memory_key`.
REDCO_API bool is_same_tensor(const at::Tensor& a, const at::Tensor& b);
REDCO_API const void* memory_key(const at::Tensor& tensor);

/// The same tree with its tensors replaced by `tensors`, in order. Throws Error unless the number
/// of tensors is that of the tree.
REDCO_API Tree with_tensors(const Tree& tree, const std::vector<at::Tensor>& tensors);

}  // namespace redco
