// Makes tokenizers from their parts.

#include "readers.h"
#include "tokenizer_state.h"

#include <redco/error.h>

namespace redco {

using namespace text;

namespace {

using Parts = TokenizerParts;
using Files = std::map<std::string, std::string>;

Pipeline sentencepiece_from(const std::string& where, const Parts& parts) {
  SentencePieceModel model;
  model.model = parts.model;
  model.pieces = parts.tokens;
  model.scores = parts.scores;
  model.types = parts.types;
  model.charsmap = parts.precompiled_charsmap;
  model.add_dummy_prefix = parts.add_space_prefix;
  model.remove_extra_whitespaces = parts.remove_extra_whitespaces;
  // As in Hugging Face's tokenizers of the same models.
  if (parts.unk_id && *parts.unk_id >= 0 && *parts.unk_id < int64_t(parts.tokens.size()))
    model.unknown_surface = parts.tokens[size_t(*parts.unk_id)];
  for (int32_t type : parts.types) model.byte_fallback |= type == Parts::byte;
  return sentencepiece_pipeline(where, model);
}

// Tokens that begin a text, end it or replace unknown text leave the whitespace after them alone.
bool strips_after(const Parts& parts, int64_t id) {
  return parts.strips_after_special && id != parts.bos_id && id != parts.eos_id &&
         id != parts.unk_id;
}

}  // namespace

Tokenizer Tokenizer::from_parts(const std::string& where, const Parts& given) {
  Parts parts = given;
  size_t n = parts.tokens.size();
  require(n > 0 && n <= size_t(largest_id), where, "there are ", n, " tokens");
  if (parts.types.empty()) parts.types.assign(n, Parts::normal);
  require(parts.types.size() == n, where, "there are ", n, " tokens and ", parts.types.size(),
          " types of tokens");
  bool byte_level = parts.model == Parts::Model::byte_level_bpe;
  require(byte_level || parts.scores.size() == n, where, "there are ", n, " tokens and ",
          parts.scores.size(), " scores");
  Pipeline pipeline =
      byte_level ? byte_level_pipeline(where, parts) : sentencepiece_from(where, parts);

  Settings settings;
  settings.chat_template = parts.chat_template;
  auto token = [&](const char* role, std::optional<int64_t> id) {
    require(*id >= 0 && *id < int64_t(n), where, "the ", role, " token has the number ", *id,
            ", there are ", n);
    return AddedToken{.content = parts.tokens[size_t(*id)], .id = *id, .special = true};
  };
  for (auto [role, id] : {std::pair("bos", parts.bos_id), std::pair("eos", parts.eos_id),
                          std::pair("unk", parts.unk_id), std::pair("pad", parts.pad_id)})
    if (id) settings.special_tokens[role] = token(role, id).content;
  for (size_t i = 0; i < n; ++i) {
    bool special = parts.types[i] == Parts::control || parts.types[i] == Parts::unknown;
    // SentencePiece's user-defined pieces are already matched.
    if (special || (byte_level && parts.types[i] == Parts::user_defined))
      pipeline.added_tokens.push_back({.content = parts.tokens[i],
                                       .id = int64_t(i),
                                       .special = special,
                                       .rstrip = strips_after(parts, int64_t(i))});
  }
  std::vector<AddedToken> before, after;
  if (parts.add_bos && parts.bos_id) before.push_back(token("bos", parts.bos_id));
  if (parts.add_eos && parts.eos_id) after.push_back(token("eos", parts.eos_id));
  if (!before.empty() || !after.empty()) pipeline.post_processor.around = surround(before, after);
  auto state = std::make_unique<State>(std::move(pipeline), std::move(settings), Files{});
  state->parts = std::move(parts);
  return Tokenizer(std::move(state));
}

}  // namespace redco
