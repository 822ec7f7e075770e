// Reads symbols by a grammar.

#include "automaton.h"

#include <redco/error.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace redco::text {

namespace {

// The most stacks of a state. A schema whose choices multiply with each level would make 2^level
// stacks: a symbol that leads to more than this is not allowed.
constexpr size_t most_stacks = 4096;
constexpr size_t most_states = 16384, most_frames = 1 << 20;

}  // namespace

Automaton::Automaton(Grammar grammar, Grammar::Node root)
    : grammar_(std::move(grammar)), root_(root) {
  reset();
}

void Automaton::reset() {
  frames_.assign(1, Frame());
  of_frame_.clear();
  states_.clear();
  of_stacks_.clear();
  start_ = state_of({push(root_, 0, nothing)});
  require(start_ != dead, "the schema is too large: a text may begin in more than ", most_stacks,
          " ways");
}

bool Automaton::forget_if_large() {
  const bool is_large = states_.size() > most_states || frames_.size() > most_frames;
  if (is_large) reset();
  return is_large;
}

Automaton::Stack Automaton::push(Grammar::Node node, uint32_t at, Stack below) {
  auto [found, is_new] = of_frame_.try_emplace({node, at, below}, Stack(frames_.size()));
  if (is_new) frames_.push_back({node, at, below});
  return found->second;
}

Automaton::State Automaton::state_of(std::vector<Stack> open) {
  std::vector<Stack> stacks;
  std::unordered_set<Stack> seen(open.begin(), open.end());
  auto visit = [&](Stack stack) {
    if (seen.insert(stack).second) open.push_back(stack);
  };
  bool is_complete = false;
  while (!open.empty()) {
    const Stack stack = open.back();
    open.pop_back();
    if (stack == nothing) {
      is_complete = true;
      continue;
    }
    const Frame frame = frames_[stack];
    const auto& children = grammar_.children(frame.node);
    switch (grammar_.kind(frame.node)) {
      case Grammar::Kind::choice:
        for (Grammar::Node child : children) visit(push(child, 0, frame.below));
        break;
      case Grammar::Kind::sequence: {
        if (children.empty()) {
          visit(frame.below);
          break;
        }
        const bool is_last = frame.at + 1 == children.size();
        const Stack rest = is_last ? frame.below : push(frame.node, frame.at + 1, frame.below);
        visit(push(children[frame.at], 0, rest));
        break;
      }
      default:
        stacks.push_back(stack);
    }
    if (stacks.size() > most_stacks || seen.size() > 32 * most_stacks) return dead;
  }
  if (stacks.empty() && !is_complete) return dead;
  std::sort(stacks.begin(), stacks.end());
  stacks.erase(std::unique(stacks.begin(), stacks.end()), stacks.end());
  std::vector<Stack> key = stacks;
  if (is_complete) key.push_back(nothing);
  auto [found, is_new] = of_stacks_.try_emplace(std::move(key), State(states_.size()));
  if (is_new) states_.push_back({std::move(stacks), is_complete, {}});
  return found->second;
}

Automaton::State Automaton::next(State state, uint32_t symbol) {
  const bool is_byte = symbol < Grammar::first_special;
  Known& known = states_[size_t(state)];
  if (is_byte) {
    if (known.transitions.empty()) known.transitions.resize(Grammar::first_special, unknown);
    if (known.transitions[symbol] != unknown) return known.transitions[symbol];
  }
  std::vector<Stack> stacks;
  for (Stack stack : known.stacks)
    if (grammar_.fits(frames_[stack].node, symbol)) stacks.push_back(frames_[stack].below);
  const State after = stacks.empty() ? dead : state_of(std::move(stacks));
  if (is_byte) states_[size_t(state)].transitions[symbol] = after;
  return after;
}

}  // namespace redco::text
