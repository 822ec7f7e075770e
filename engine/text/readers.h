#pragma once

#include "json_fields.h"
#include "pipeline.h"

#include <redco/tree.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace redco::text {

/// What files beside the vocabulary say of a tokenizer.
struct Settings {
  std::map<std::string, std::string> special_tokens;  ///< by role: "bos", "eos", ...
  std::vector<std::string> additional_special_tokens;
  Side padding_side = Side::right;
  Side truncation_side = Side::right;
  std::optional<int64_t> model_max_length;
  bool clean_up_tokenization_spaces = false;
  std::string chat_template;
  std::string tool_template;  ///< for conversations with tools; empty: the same
};

/// The greatest number a token may have.
inline constexpr int64_t largest_id = INT32_MAX - 1;

/// A new tokenizer of these parts; `files` are those it was read from, by their names.
Tokenizer make_tokenizer(Pipeline pipeline, Settings settings,
                         std::map<std::string, std::string> files = {});

/// `settings` gets what the file says of truncation and padding.
Pipeline read_tokenizer_json(const std::string& where, std::string_view text, Settings& settings);

/// GPT-2's vocab.json and merges.txt.
Pipeline read_vocab_and_merges(const std::string& where, std::string_view vocab,
                               const std::string& merges_where, std::string_view merges,
                               bool add_prefix_space);

/// A SentencePiece model, read: what its protobuf message holds.
struct SentencePieceModel {
  TokenizerParts::Model model = TokenizerParts::Model::unigram;
  std::vector<std::string> pieces;
  std::vector<float> scores;
  std::vector<int32_t> types;
  std::string unknown_surface = " \u2047 ";
  std::string charsmap;
  bool byte_fallback = false;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
  bool whitespace_as_suffix = false;
};
SentencePieceModel read_sentencepiece(const std::string& where, std::string_view bytes);
Pipeline sentencepiece_pipeline(const std::string& where, const SentencePieceModel& model);

/// The pipeline of byte-level BPE, as GPT-2 has it. An expression for words, or several.
Pipeline byte_level_pipeline(std::unique_ptr<Model> model, const std::string& where,
                             const std::vector<std::string>& words, bool add_prefix_space);

/// The same from TokenizerParts.
Pipeline byte_level_pipeline(const std::string& where, const TokenizerParts& parts);

/// What the metadata of a GGUF file say of its tokenizer.
TokenizerParts read_gguf_tokenizer(const std::string& where, const Tree::Dict& metadata);

/// A JSON object of tokens and their numbers.
Vocabulary read_vocabulary(const JsonField& field);

/// The template that puts these tokens around a text, and around each of a pair.
Template surround(const std::vector<AddedToken>& before, const std::vector<AddedToken>& after);

/// RoBERTa's: a pair's texts have two `sep` between them.
Template surround_like_roberta(const AddedToken& cls, const AddedToken& sep);

}  // namespace redco::text
