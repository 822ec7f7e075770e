#pragma once

#include "json_fields.h"
#include "pipeline.h"
#include "tokenizer_class.h"

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace redco::text {

struct Settings;

/// The tokens that a tokenizer's folder lists besides its vocabulary, read as version 4 of
/// `transformers` does.
class ListedTokens {
 public:
  /// Reads tokenizer_config.json and, unless it has added_tokens_decoder, special_tokens_map.json
  /// and added_tokens.json. Names the special tokens in `settings`, whose own are used if neither
  /// the files nor the class name others.
  ListedTokens(const TokenizerClass& kind, const JsonField& config,
               const std::optional<JsonField>& map, const std::optional<JsonField>& added,
               Settings& settings);

  /// Adds the tokens to the pipeline.
  void add_to(Pipeline& pipeline) const;

 private:
  struct Special {
    AddedToken token;
    /// Whether a file gives its text only, not how it matches.
    bool is_text = true;
    /// Whether a file gives it as a role's.
    bool is_role = false;
  };

  static Special read_special(const JsonField& field);
  void read_roles(const JsonField& file, const TokenizerClass& kind);
  void read_more(const JsonField& list);
  /// Adds those that the class has besides them.
  void complete_more(const TokenizerClass& kind, const JsonField& config);
  void read_decoder(const JsonField& listed);
  void read_added(const JsonField& added);
  void name_tokens(Settings& settings) const;
  /// Whether a file names the text as that of a special token.
  bool is_named(const std::string& content) const;
  /// The special tokens in the order in which they are added, each text once.
  std::vector<Special> specials() const;

  std::map<std::string, Special> roles_;
  std::vector<Special> more_;
  std::map<int64_t, AddedToken> by_id_;
  bool has_decoder_ = false;
};

}  // namespace redco::text
