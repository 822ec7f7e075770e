#pragma once

#include "pipeline.h"
#include "readers.h"
#include "word_cache.h"

#include <redco/tokenizer.h>

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace redco {

struct Tokenizer::State {
  text::Pipeline pipeline;
  text::Settings settings;
  std::map<std::string, std::string> files;
  std::optional<TokenizerParts> parts;  ///< from which it was made, if not from files
  /// Whether the tokens, their roles or the chat template are no longer those of the files.
  bool is_changed = false;
  bool has_new_template = false;
  /// Of the added tokens: how they are found in a text, and the token of a text and of a number.
  text::AddedTokenFinder in_given, in_normalized;
  std::unordered_map<std::string, text::AddedToken, text::StringHash, std::equal_to<>> added;
  std::unordered_map<int64_t, std::string> added_by_id;
  mutable text::WordCache cache;
  mutable std::mutex cache_mutex;

  State(text::Pipeline made, text::Settings given, std::map<std::string, std::string> read);

  void normalize(text::Text& text) const;
  /// Adds tokens as text::TokenAdder does. Returns how many it added.
  int64_t add(const std::vector<text::AddedToken>& tokens);
  Encoding encode_text(std::string_view text, const EncodeOptions& options) const;
  Encoding encode(std::vector<Encoding> texts, const EncodeOptions& options) const;
  std::vector<text::Template::Piece> pieces_for(size_t n_texts, bool with_special) const;
  EncodeOptions internal(EncodeOptions options) const {
    // Trimming offsets needs the tokens.
    options.with_tokens |= options.with_offsets && !pipeline.post_processor.trims.empty();
    return options;
  }

 private:
  void index_added_tokens();
};

namespace text {

/// Throws Error if a step makes much more text of what it was given: steps in a damaged file may
/// expand each other's output without bound.
void check_growth(size_t given, size_t made);

/// The tokenizer's files with its changes, by name.
std::map<std::string, std::string> changed_files(const Tokenizer::State& state);

}  // namespace text

}  // namespace redco
