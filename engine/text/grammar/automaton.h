#pragma once

#include "grammar.h"

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

namespace redco::text {

/// Reads symbols by a grammar. A state is a set of stacks, which say what may follow; states and
/// their transitions are made when they are first reached.
class Automaton {
 public:
  using State = int32_t;
  static constexpr State dead = -1;  ///< nothing may follow, and the text is not complete

  Automaton(Grammar grammar, Grammar::Node root);

  State start() const { return start_; }
  State next(State state, uint32_t symbol);
  /// Whether the text may end here.
  bool is_complete(State state) const { return states_[size_t(state)].is_complete; }

  /// Forgets all states if there are many. Returns whether it did; they are invalid then.
  bool forget_if_large();

 private:
  using Stack = uint32_t;
  static constexpr Stack nothing = 0;
  static constexpr State unknown = -2;

  /// The child number `at` of a node comes next, and then the rest of the node and of `below`.
  struct Frame {
    Grammar::Node node = 0;
    uint32_t at = 0;
    Stack below = nothing;
  };
  struct Known {
    std::vector<Stack> stacks;  ///< each has a symbol on top
    bool is_complete;
    std::vector<State> transitions;  ///< of bytes; empty until one is asked for
  };

  void reset();
  Stack push(Grammar::Node node, uint32_t at, Stack below);
  /// The state after the expansion of these stacks down to symbols.
  State state_of(std::vector<Stack> stacks);

  Grammar grammar_;
  Grammar::Node root_;
  State start_ = dead;
  std::vector<Frame> frames_;  ///< by stack; the first stands for the end of the text
  std::map<std::tuple<Grammar::Node, uint32_t, Stack>, Stack> of_frame_;
  std::vector<Known> states_;
  std::map<std::vector<Stack>, State> of_stacks_;
};

}  // namespace redco::text
