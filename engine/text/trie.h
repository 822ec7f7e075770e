#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace redco::text {

/// Byte strings with values, looked up by prefix. Edges are stored in one hash table keyed by node
/// and byte.
class Trie {
 public:
  Trie();

  /// An empty key is never found; a key added twice has the later value.
  void add(std::string_view key, int32_t value);

  /// Calls `found(size, value)` for each key that is a prefix of `text`, shortest first.
  template <class Found>
  void each_prefix(std::string_view text, Found found) const {
    uint32_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      node = child(node, static_cast<unsigned char>(text[i]));
      if (node == 0) return;
      if (values_[node] != none) found(i + 1, values_[node]);
    }
  }

  bool empty() const { return values_.size() == 1; }

 private:
  static constexpr int32_t none = -1;
  struct Edge {
    uint64_t key = ~uint64_t{0};
    uint32_t node = 0;
  };

  size_t slot(uint64_t key) const;
  uint32_t child(uint32_t node, unsigned char byte) const {
    return edges_[slot(uint64_t{node} << 8 | byte)].node;
  }

  std::vector<Edge> edges_;  ///< open addressing; the size is a power of two
  std::vector<int32_t> values_;
};

inline size_t Trie::slot(uint64_t key) const {
  size_t mask = edges_.size() - 1;
  size_t i = (key * 0x9E3779B97F4A7C15u >> 20) & mask;
  while (edges_[i].node != 0 && edges_[i].key != key) i = (i + 1) & mask;
  return i;
}

}  // namespace redco::text
