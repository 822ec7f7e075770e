// A trie of byte strings.

#include "trie.h"

namespace redco::text {

Trie::Trie() : edges_(16), values_(1, none) {}

void Trie::add(std::string_view key, int32_t value) {
  uint32_t node = 0;
  for (char c : key) {
    uint64_t edge = uint64_t{node} << 8 | static_cast<unsigned char>(c);
    size_t i = slot(edge);
    if (edges_[i].node == 0) {
      if (values_.size() * 2 > edges_.size()) {
        std::vector<Edge> old(edges_.size() * 2);
        old.swap(edges_);
        for (const Edge& e : old)
          if (e.node != 0) edges_[slot(e.key)] = e;
        i = slot(edge);
      }
      edges_[i] = {edge, uint32_t(values_.size())};
      values_.push_back(none);
    }
    node = edges_[i].node;
  }
  if (node != 0) values_[node] = value;
}

}  // namespace redco::text
