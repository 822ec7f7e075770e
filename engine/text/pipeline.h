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

/// A template for one text or a pair.
struct Template {
  struct Piece {
    bool is_text = false;
    int sequence = 0;                 ///< for a text: 0 the first, 1 the second
    std::vector<int64_t> ids;         ///< of special tokens
    std::vector<std::string> tokens;  ///< their names
    int64_t type_id = 0;
  };
  std::vector<Piece> single;
  std::vector<Piece> pair;
};

struct PostProcessor {
  /// If present, offsets exclude the spaces at the ends of tokens; `add_prefix_space` tells whether
  /// a space that was inserted before the first token is not counted.
  struct Trim {
    bool add_prefix_space;
  };
  std::vector<Trim> trims;
  std::optional<Template> around;
};

/// The parts of a tokenizer, built by the readers of each file format.
struct Pipeline {
  /// Whether tokens depend on their positions in the given text.
  bool needs_origins = false;
  std::vector<Normalizer> normalizers;
  std::vector<PreTokenizer> pre_tokenizers;
  std::unique_ptr<Model> model;
  PostProcessor post_processor;
  std::vector<Decoder> decoders;
  std::vector<AddedToken> added_tokens;
  /// Added tokens that are matched in the normalized text but are not normalized themselves:
  /// SentencePiece's user-defined pieces.
  std::vector<AddedToken> normalized_tokens;
};

/// Excludes the spaces at the ends of tokens from their offsets.
void trim_offsets(Encoding& encoding, bool add_prefix_space);

/// Inserts texts into a template.
Encoding fill_template(const std::vector<Template::Piece>& pieces,
                       const std::vector<const Encoding*>& texts, const EncodeOptions& options);

/// The number of tokens a template adds.
size_t n_added(const std::vector<Template::Piece>& pieces);

}  // namespace redco::text
