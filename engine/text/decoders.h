#pragma once

#include "regex.h"

#include <functional>
#include <string>
#include <vector>

namespace redco::text {

/// A step from tokens to text: changes the tokens' texts, or joins some. After the last step the
/// texts are concatenated.
struct Decoder {
  std::function<void(std::vector<std::string>&)> apply;
  /// For a step that reads tokens as bytes of UTF-8: returns the bytes of a token.
  std::string (*bytes_of)(const std::string& token) = nullptr;
};

Decoder decode_bytes_of_characters();
/// `keeps_first`: the symbol before the first token also becomes a space.
Decoder decode_metaspace(std::string symbol, bool keeps_first);
Decoder decode_replace(Pattern pattern, std::string content);
/// Runs of tokens such as <0xE2> become the text they encode, or one U+FFFD each if they are
/// invalid.
Decoder decode_byte_fallback();
Decoder decode_fuse();
/// Removes up to `start` and `stop` occurrences of the character from the start and the end of each
/// token.
Decoder decode_strip(std::string character, size_t start, size_t stop);
/// The suffix of a word's last token becomes a space, except at the end.
Decoder decode_suffix(std::string suffix);

/// Puts spaces before tokens without the prefix; `cleanup` removes those of tokenized English.
Decoder decode_wordpiece(std::string prefix, bool cleanup);

/// Removes superfluous spaces of tokenized English text, as `transformers` does.
std::string without_tokenization_spaces(std::string text);

/// Writes pieces as the sentencepiece library does.
struct SentencePieceSurface {
  std::string unknown_piece;
  std::string unknown_surface;
  bool strips_first_space = true;   ///< a dummy prefix was added, or spaces were removed
  bool strips_every_space = false;  ///< all leading spaces, not only those of one token
};
Decoder decode_sentencepiece(SentencePieceSurface surface);

}  // namespace redco::text
