// Grammars of texts.

#include "grammar.h"

#include <redco/error.h>

#include <algorithm>
#include <utility>

namespace redco::text {

namespace {

constexpr size_t most_parts = 200000;

}  // namespace

Grammar::Grammar() : empty_(sequence({})) {}

Grammar::Node Grammar::add(Part part) {
  n_children_ += part.children.size() + 1;
  require(n_children_ <= most_parts, "the schema is too large: its grammar has more than ",
          most_parts, " parts");
  parts_.push_back(std::move(part));
  return Node(parts_.size() - 1);
}

Grammar::Node Grammar::bytes(const Bytes& set) {
  auto [found, is_new] = of_set_.try_emplace(set.to_string());
  if (is_new) {
    sets_.push_back(set);
    found->second = add({Kind::bytes, uint32_t(sets_.size() - 1)});
  }
  return found->second;
}

Grammar::Node Grammar::special(int64_t token) {
  return add({Kind::symbol, uint32_t(first_special + token)});
}

Grammar::Node Grammar::literal(std::string_view text) {
  std::vector<Node> nodes;
  for (char c : text) nodes.push_back(bytes(Bytes().set(static_cast<unsigned char>(c))));
  return sequence(std::move(nodes));
}

Grammar::Node Grammar::sequence(std::vector<Node> nodes) {
  return add({Kind::sequence, 0, std::move(nodes)});
}

Grammar::Node Grammar::choice(std::vector<Node> options) {
  return add({Kind::choice, 0, std::move(options)});
}

Grammar::Node Grammar::one_of(std::vector<std::string> texts) {
  std::sort(texts.begin(), texts.end());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  return one_of(texts, 0, texts.size(), 0);
}

// One of the texts [first, last), without their first `depth` bytes, which are equal.
Grammar::Node Grammar::one_of(const std::vector<std::string>& sorted, size_t first, size_t last,
                              size_t depth) {
  if (last - first == 1) return literal(std::string_view(sorted[first]).substr(depth));
  size_t shared = depth;
  const std::string &low = sorted[first], &high = sorted[last - 1];
  while (shared < low.size() && low[shared] == high[shared]) ++shared;
  std::vector<Node> options;
  for (size_t at = first; at < last;) {
    if (sorted[at].size() == shared) {
      options.push_back(empty_);
      ++at;
      continue;
    }
    size_t next = at;
    while (next < last && sorted[next][shared] == sorted[at][shared]) ++next;
    options.push_back(one_of(sorted, at, next, shared));
    at = next;
  }
  return sequence(
      {literal(std::string_view(low).substr(depth, shared - depth)), choice(std::move(options))});
}

Grammar::Node Grammar::repeat(Node node, int64_t least, int64_t most, Node separator) {
  const Node further = sequence({separator, node});
  Node rest = empty_;
  if (most == unlimited) {
    rest = reserve();
    complete(rest, optional(sequence({further, rest})));
  } else {
    for (int64_t i = std::max<int64_t>(least, 1); i < most; ++i)
      rest = optional(sequence({further, rest}));
  }
  for (int64_t i = 1; i < least; ++i) rest = sequence({further, rest});
  if (most == 0) return empty_;
  const Node all = sequence({node, rest});
  return least == 0 ? optional(all) : all;
}

std::vector<bool> Grammar::prune() {
  std::vector<bool> ends(parts_.size());
  // Passes alternate in direction, because a part may refer to earlier and to later parts.
  bool is_forward = false;
  for (bool is_changed = true; is_changed;) {
    is_changed = false;
    is_forward = !is_forward;
    for (size_t at = 0; at < parts_.size(); ++at) {
      const size_t i = is_forward ? at : parts_.size() - 1 - at;
      if (ends[i]) continue;
      auto is_finite = [&](Node child) { return ends[child]; };
      const std::vector<Node>& children = parts_[i].children;
      ends[i] = parts_[i].kind == Kind::choice
                    ? std::any_of(children.begin(), children.end(), is_finite)
                    : std::all_of(children.begin(), children.end(), is_finite);
      is_changed |= ends[i];
    }
  }
  for (Part& part : parts_)
    if (part.kind == Kind::choice)
      std::erase_if(part.children, [&](Node child) { return !ends[child]; });
  return ends;
}

bool Grammar::fits(Node node, uint32_t symbol) const {
  const Part& part = parts_[node];
  if (part.kind == Kind::symbol) return part.value == symbol;
  return symbol < first_special && sets_[part.value][symbol];
}

}  // namespace redco::text
