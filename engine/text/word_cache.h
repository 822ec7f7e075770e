#pragma once

#include "model.h"

#include <string>
#include <string_view>
#include <vector>

namespace redco::text {

/// A cache of words and their tokens. Each word has one slot; a later word may replace it.
class WordCache {
 public:
  /// The tokens of a word, from the cache or else from the model.
  const std::vector<Token>& tokens(std::string_view word, const Model& model) {
    if (slots_.empty()) slots_.resize(n_slots);
    Slot& slot = slots_[StringHash()(word) & (n_slots - 1)];
    if (slot.word != word || word.empty()) {
      slot.tokens.clear();
      slot.word.clear();
      model.tokenize(word, slot.tokens);
      slot.word = word;
    }
    return slot.tokens;
  }

  /// Longer words rarely repeat.
  static constexpr size_t longest_word = 64;

 private:
  static constexpr size_t n_slots = 1 << 14;
  struct Slot {
    std::string word;
    std::vector<Token> tokens;
  };
  std::vector<Slot> slots_;
};

}  // namespace redco::text
