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

/// The settings of a tokenizer from files other than the vocabulary.
struct Settings {
  std::map<std::string, std::string> special_tokens;  ///< by role: "bos", "eos", ...
  std::vector<std::string> additional_special_tokens;
  Side padding_side = Side::right;
  Side truncation_side = Side::right;
  std::optional<int64_t> model_max_length;
  bool clean_up_tokenization_spaces = false;
  bool splits_special_tokens = false;  ///< special tokens in a text are cut as other words are
  bool writes_times = false;           ///< tokens after <|notimestamps|> are times, as Whisper's
  bool returns_type_ids = false;  ///< batches have token_type_ids, unless the call says otherwise
  bool returns_mask = true;       ///< and attention_mask
  std::string chat_template;
  std::string tool_template;  ///< for conversations with tools; empty: the same
};

/// The largest valid token id.
inline constexpr int64_t largest_id = INT32_MAX - 1;

/// Makes a tokenizer from these parts; `files` are the files it was read from, by name.
Tokenizer make_tokenizer(Pipeline pipeline, Settings settings,
                         std::map<std::string, std::string> files = {});

/// Removes files of a tokenizer from a folder but for `kept`, with which they would be read.
void remove_other_files(const std::string& folder, const std::map<std::string, std::string>& kept);

/// The parsed bytes of a tokenizer's JSON file.
nlohmann::json parse_tokenizer_json(const std::string& where, std::string_view text);

/// Reads tokenizer.json. Sets truncation and padding in `settings` from the file.
Pipeline read_tokenizer_json(const JsonField& file, Settings& settings);

/// Reads the vocabulary and the merges of vocab.json and merges.txt.
BpeOptions read_bpe_files(const std::string& where, std::string_view vocab,
                          const std::string& merges_where, std::string_view merges);

/// The pipeline of `transformers`' CLIPTokenizer without ftfy. Names its special tokens, unless
/// `settings` do.
Pipeline clip_pipeline(const std::string& where, BpeOptions options, Settings& settings);

/// Reads GPT-2's vocab.json and merges.txt.
Pipeline read_vocab_and_merges(const std::string& where, std::string_view vocab,
                               const std::string& merges_where, std::string_view merges,
                               bool add_prefix_space);

/// Reads BERT's vocab.txt, a token a line.
Pipeline read_vocab_txt(const std::string& where, std::string_view text,
                        const std::string& unknown_token, BertSpec spec);

/// The content of a SentencePiece model.
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

/// The same for `transformers`' SiglipTokenizer, which first removes punctuation. Names its special
/// tokens and the length, unless `settings` do.
Pipeline siglip_pipeline(const std::string& where, SentencePieceModel model, bool lowercases,
                         Settings& settings);

/// The pipeline of byte-level BPE as in GPT-2, with one or several expressions for words.
Pipeline byte_level_pipeline(std::unique_ptr<Model> model, const std::string& where,
                             const std::vector<std::string>& words, bool add_prefix_space);

/// The same from TokenizerParts.
Pipeline byte_level_pipeline(const std::string& where, const TokenizerParts& parts);

/// Reads the tokenizer from the metadata of a GGUF file.
TokenizerParts read_gguf_tokenizer(const std::string& where, const Tree::Dict& metadata);

/// Reads a JSON object of tokens and their ids.
Vocabulary read_vocabulary(const JsonField& field);

/// The template with these tokens around a text, and around each text of a pair.
Template surround(const std::vector<AddedToken>& before, const std::vector<AddedToken>& after);

/// Names BERT's special tokens, unless `settings` do, and puts its template around texts.
void add_bert_template(const std::string& where, Pipeline& pipeline, Settings& settings);

/// BERT's template, with one `sep` after each text.
Template surround_like_bert(const AddedToken& cls, const AddedToken& sep);

/// RoBERTa's template, with two `sep` between the texts of a pair.
Template surround_like_roberta(const AddedToken& cls, const AddedToken& sep);

}  // namespace redco::text
