#pragma once

#include "charsmap.h"
#include "regex.h"
#include "text.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace redco::text {

/// Rewrites a text before it is cut into words.
using Normalizer = std::function<void(Text&)>;

Normalizer prepend(std::string text);
/// What a match stands for becomes that of its last character.
Normalizer replace(Pattern pattern, std::string content);
Normalizer strip(bool left, bool right);
Normalizer lowercase();

enum class UnicodeForm { nfc, nfd, nfkc, nfkd };
Normalizer unicode_normalization(UnicodeForm form);

/// The character map as `tokenizers` applies it: to grapheme clusters of up to five bytes, of which
/// the shortest prefix decides for the whole, then to single characters.
Normalizer precompiled(std::shared_ptr<const CharsMap> map);

/// SentencePiece's own normalizer: the longest match of the character map, then what its
/// NormalizerSpec says of spaces.
struct SentencePieceSpec {
  std::shared_ptr<const CharsMap> map;  ///< null: characters stay
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
  bool whitespace_as_suffix = false;
  std::vector<std::string> user_defined;  ///< pieces that the map leaves alone
};
Normalizer sentencepiece_normalization(SentencePieceSpec spec);

}  // namespace redco::text
