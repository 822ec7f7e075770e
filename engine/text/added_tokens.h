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

/// A token that is matched in the text before the model runs.
struct AddedToken {
  std::string content;
  int64_t id = 0;
  bool special = false;
  bool single_word = false;  ///< does not match inside a longer word
  bool lstrip = false;       ///< includes whitespace before it
  bool rstrip = false;       ///< includes whitespace after it
  bool normalized = false;   ///< matched in the normalized text
};

/// The tokens to match in one kind of text: as given, or normalized.
class AddedTokenFinder {
 public:
  /// `key` is the form of the token in that kind of text.
  void add(const AddedToken& token, std::string_view key);

  /// Calls `between(range)` and `found(range, token)` for the parts of the text from left to right;
  /// at each position the longest token matches.
  void cut(std::string_view text, const std::function<void(Range)>& between,
           const std::function<void(Range, const AddedToken&)>& found) const;

  /// Special tokens are no longer found.
  void leave_out_special() { finds_special_ = false; }

 private:
  std::vector<AddedToken> tokens_;
  Trie trie_;
  bool starts_[256] = {};
  bool finds_special_ = true;
};

}  // namespace redco::text
