#pragma once

#include "text.h"
#include "trie.h"

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace redco::text {

/// A token that is found in the text before the model sees it.
struct AddedToken {
  std::string content;
  int64_t id = 0;
  bool special = false;
  bool single_word = false;  ///< not as a part of a longer word
  bool lstrip = false;       ///< takes the whitespace before it along
  bool rstrip = false;       ///< and after it
  bool normalized = false;   ///< looked for in the normalized text
};

/// The tokens that are looked for in one kind of text: as given, or normalized.
class AddedTokenFinder {
 public:
  /// `key` is what stands for the token in that kind of text.
  void add(const AddedToken& token, std::string_view key);

  /// Calls `between(range)` and `found(range, token)` for the parts of the text from left to right;
  /// at each place the longest token counts.
  void cut(std::string_view text, const std::function<void(Range)>& between,
           const std::function<void(Range, const AddedToken&)>& found) const;

 private:
  std::vector<AddedToken> tokens_;
  Trie trie_;
  bool starts_[256] = {};
};

}  // namespace redco::text
