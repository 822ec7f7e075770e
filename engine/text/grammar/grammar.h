#pragma once

#include <bitset>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace redco::text {

/// A context-free grammar. Its symbols are bytes, and special tokens, which have no bytes: the
/// symbol of token t is 256 + t.
class Grammar {
 public:
  using Node = uint32_t;
  using Bytes = std::bitset<256>;
  enum class Kind : uint8_t { bytes, symbol, sequence, choice };

  static constexpr uint32_t first_special = 256;
  static constexpr int64_t unlimited = std::numeric_limits<int64_t>::max();

  Grammar();

  /// One of these bytes.
  Node bytes(const Bytes& set);
  Node special(int64_t token);
  Node literal(std::string_view text);
  /// One of these texts, which share the nodes of equal beginnings.
  Node one_of(std::vector<std::string> texts);
  Node sequence(std::vector<Node> nodes);
  Node choice(std::vector<Node> options);
  Node optional(Node node) { return choice({node, empty_}); }
  /// From `least` to `most` times, each after the first preceded by `separator`.
  Node repeat(Node node, int64_t least, int64_t most, Node separator);
  Node repeat(Node node, int64_t least, int64_t most) { return repeat(node, least, most, empty_); }
  Node empty() const { return empty_; }

  /// A node that gets its meaning later, so that others can refer to it.
  Node reserve() { return choice({}); }
  void complete(Node reserved, Node meaning) { parts_[reserved].children = {meaning}; }

  /// Removes options that no finite text fits. Returns which nodes one fits.
  std::vector<bool> prune();

  Kind kind(Node node) const { return parts_[node].kind; }
  const std::vector<Node>& children(Node node) const { return parts_[node].children; }
  /// Whether a node that is bytes or a special token fits a symbol.
  bool fits(Node node, uint32_t symbol) const;

 private:
  struct Part {
    Kind kind;
    uint32_t value = 0;  ///< the number of the set of bytes, or the symbol
    std::vector<Node> children = {};
  };

  Node add(Part part);
  Node one_of(const std::vector<std::string>& sorted, size_t first, size_t last, size_t depth);

  std::vector<Part> parts_;
  std::vector<Bytes> sets_;
  std::map<std::string, Node> of_set_;
  size_t n_children_ = 0;
  Node empty_;
};

}  // namespace redco::text
