#pragma once

#include "added_tokens.h"
#include "decoders.h"
#include "model.h"
#include "normalizers.h"
#include "pre_tokenizers.h"

#include <redco/tokenizer.h>

#include <optional>
#include <string>
#include <vector>

namespace redco::text {

/// A template around one text or two.
struct Template {
  struct Piece {
    bool is_text = false;
    int sequence = 0;                 ///< of a text: 0 the first, 1 the second
    std::vector<int64_t> ids;         ///< of special tokens
    std::vector<std::string> tokens;  ///< their names
    int64_t type_id = 0;
  };
  std::vector<Piece> single;
  std::vector<Piece> pair;
};

struct PostProcessor {
  /// Whether offsets leave out the spaces at the ends of tokens, and if so, whether the one that
  /// was put before the first token counts as none.
  struct Trim {
    bool add_prefix_space;
  };
  std::vector<Trim> trims;
  std::optional<Template> around;
};

/// What every reader of tokenizer files builds.
struct Pipeline {
  /// Whether tokens depend on which characters of the given text they stand for.
  bool needs_origins = false;
  std::vector<Normalizer> normalizers;
  std::vector<PreTokenizer> pre_tokenizers;
  std::unique_ptr<Model> model;
  PostProcessor post_processor;
  std::vector<Decoder> decoders;
  std::vector<AddedToken> added_tokens;
  /// Added tokens that are looked for in the normalized text as they are, not normalized
  /// themselves: SentencePiece's user-defined pieces.
  std::vector<AddedToken> normalized_tokens;
};

/// Leaves out the spaces at the ends of tokens from their offsets.
void trim_offsets(Encoding& encoding, bool add_prefix_space);

/// Puts texts into their template.
Encoding fill_template(const std::vector<Template::Piece>& pieces,
                       const std::vector<Encoding>& texts, const EncodeOptions& options);

/// How many tokens a template adds.
size_t n_added(const std::vector<Template::Piece>& pieces);

}  // namespace redco::text
