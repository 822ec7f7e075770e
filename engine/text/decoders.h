#pragma once

#include "regex.h"

#include <functional>
#include <string>
#include <vector>

namespace redco::text {

/// One step from tokens to text: changes the tokens' texts, or joins some. What is left at the end
/// is the text, one after another.
struct Decoder {
  std::function<void(std::vector<std::string>&)> apply;
  /// For a step that reads tokens as bytes of UTF-8: the bytes of one token.
  std::string (*bytes_of)(const std::string& token) = nullptr;
};

Decoder decode_bytes_of_characters();
/// `keeps_first`: the symbol in front of the first token is a space too.
Decoder decode_metaspace(std::string symbol, bool keeps_first);
Decoder decode_replace(Pattern pattern, std::string content);
/// Runs of tokens such as <0xE2> become the text they encode, or U+FFFD for each where they
/// encode none.
Decoder decode_byte_fallback();
Decoder decode_fuse();
/// Takes up to so many of this character from the start and the end of each token.
Decoder decode_strip(std::string character, size_t start, size_t stop);
/// The suffix of a word's last token becomes a space, except at the end.
Decoder decode_suffix(std::string suffix);

/// As the sentencepiece library writes pieces.
struct SentencePieceSurface {
  std::string unknown_piece;
  std::string unknown_surface;
  bool strips_first_space = true;   ///< a dummy prefix was added, or spaces were removed
  bool strips_every_space = false;  ///< all spaces in front, not only one token's
};
Decoder decode_sentencepiece(SentencePieceSurface surface);

}  // namespace redco::text
