#pragma once

#include "charsmap.h"
#include "regex.h"
#include "text.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace redco::text {

/// Rewrites a text before it is split into words.
using Normalizer = std::function<void(Text&)>;

Normalizer prepend(std::string text);
/// The replacement of a match gets the origin of the match's last character.
Normalizer replace(Pattern pattern, std::string content);
Normalizer strip(bool left, bool right);
Normalizer lowercase();

/// Removes marks.
Normalizer strip_accents();

enum class UnicodeForm { nfc, nfd, nfkc, nfkd };
Normalizer unicode_normalization(UnicodeForm form);

/// BERT's normalizer.
struct BertSpec {
  bool clean_text = true;                ///< removes control characters; whitespace becomes " "
  bool spaces_around_ideographs = true;  ///< splits Chinese text into characters
  bool strip_accents = true;
  bool lowercase = true;
};
Normalizer bert_normalization(BertSpec spec);

/// The character map as applied by `tokenizers`: to grapheme clusters of up to five bytes, in which
/// the shortest matching prefix replaces the whole cluster, then to single characters.
Normalizer precompiled(std::shared_ptr<const CharsMap> map);

/// SentencePiece's own normalizer: the longest match of the character map, then the rules for
/// spaces of its NormalizerSpec.
struct SentencePieceSpec {
  std::shared_ptr<const CharsMap> map;  ///< null: characters are unchanged
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
  bool whitespace_as_suffix = false;
  std::vector<std::string> user_defined;  ///< pieces that the map does not change
};
Normalizer sentencepiece_normalization(SentencePieceSpec spec);

}  // namespace redco::text
