#pragma once

#include <redco/export.h>
#include <redco/json.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace redco {

namespace text {
struct Settings;
}

/// The tokens of a text. All lists have the same length.
struct Encoding {
  std::vector<int64_t> ids;
  std::vector<std::string> tokens;
  /// Characters [begin, end) of the text for each token, counted in code points; {0, 0} for tokens
  /// without text. Empty unless requested.
  std::vector<std::pair<int64_t, int64_t>> offsets;
  /// 1 for tokens that the tokenizer's template added, such as <s>.
  std::vector<int64_t> special_tokens_mask;
  /// 1 for tokens that the template assigns to the second text of a pair.
  std::vector<int64_t> type_ids;
  /// The tokens that truncation removed, in further parts. Empty unless requested.
  std::vector<Encoding> overflow;
};

/// The tokens of a conversation.
struct ChatEncoding {
  std::vector<int64_t> ids;
  /// 1 for each token that the model says, else 0. None if the template does not mark them.
  std::optional<std::vector<int64_t>> assistant_mask;
};

enum class Side { left, right };

/// Which text of a pair is truncated; `longest_first`: the longer one, then both.
enum class Truncation { longest_first, only_first, only_second };

struct EncodeOptions {
  /// Adds the template's tokens around the text, such as <s>. Special tokens written in the text
  /// are always recognised.
  bool add_special_tokens = true;
  /// Truncates to this number of tokens, including those of the template.
  std::optional<int64_t> max_length;
  Truncation truncation = Truncation::longest_first;
  /// Default: the tokenizer's.
  std::optional<Side> truncation_side;
  bool with_tokens = false;
  bool with_offsets = false;
  /// Returns the rest of a truncated text in further parts of the same length, each of which begins
  /// with the last `stride` tokens of the part before.
  bool with_overflow = false;
  int64_t stride = 0;
};

enum class Padding { none, longest, max_length };

struct BatchOptions {
  EncodeOptions encode;
  /// With `none` all texts must have the same number of tokens.
  Padding padding = Padding::none;
  /// The length for Padding::max_length; longer rows are truncated only by encode.max_length.
  /// Default: the tokenizer's `model_max_length`.
  std::optional<int64_t> padded_length;
  /// Default: the tokenizer's.
  std::optional<Side> padding_side;
  std::optional<int64_t> pad_to_multiple_of;
};

/// An encoded batch; all tensors are int64. The parts of a text that overflow are rows after its
/// own.
struct BatchEncoding {
  at::Tensor input_ids;                   ///< [batch, length]
  at::Tensor attention_mask;              ///< [batch, length]: 0 on padding
  at::Tensor token_type_ids;              ///< [batch, length]: 0 on padding
  at::Tensor special_tokens_mask;         ///< [batch, length]: 1 also on padding
  at::Tensor offset_mapping;              ///< [batch, length, 2], undefined unless with_offsets
  at::Tensor overflow_to_sample_mapping;  ///< [batch]: the text of each row, from 0
};

struct DecodeOptions {
  bool skip_special_tokens = false;
  /// Removes spaces before punctuation. Default: the tokenizer's.
  std::optional<bool> clean_up_tokenization_spaces;
  /// Shows the times that a Whisper tokenizer's tokens stand for, "<|1.20|>". Without effect on
  /// other tokenizers.
  bool decode_with_timestamps = false;
};

/// The parts of a tokenizer as stored in other formats than Hugging Face's, such as GGUF. The input
/// of `Tokenizer::from_parts`.
struct TokenizerParts {
  enum class Model {
    byte_level_bpe,     ///< GPT-2's; needs `merges` and `pre_tokenizer`
    sentencepiece_bpe,  ///< LLaMA's; `scores` give the order of merges
    unigram,            ///< T5's; `scores` are log-probabilities
  };
  /// As in SentencePiece and GGUF model files.
  enum TokenType { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

  Model model = Model::byte_level_bpe;
  std::vector<std::string> tokens;  ///< by token id
  std::vector<float> scores;        ///< one for each token; only for SentencePiece models
  std::vector<int32_t> types;       ///< TokenType of each token; empty: all normal
  std::vector<std::string> merges;  ///< "left right", in order of priority
  /// GGUF's name for the split of text into words: "gpt-2", "llama-bpe", "smollm" and others.
  std::string pre_tokenizer = "gpt-2";
  std::optional<int64_t> bos_id, eos_id, unk_id, pad_id;
  bool add_bos = false;
  bool add_eos = false;
  bool add_space_prefix = true;           ///< SentencePiece's models only
  bool remove_extra_whitespaces = false;  ///< SentencePiece's models only
  std::string precompiled_charsmap;       ///< SentencePiece's models only; empty: none
  std::string chat_template;              ///< Jinja; empty: none
  bool strips_after_special = false;      ///< special tokens include whitespace after them
};

/// A token to add to a vocabulary. It is found in a text before the text is cut into words.
struct NewToken {
  std::string content;       ///< UTF-8
  bool special = false;      ///< decoding can leave it out
  bool single_word = false;  ///< does not match inside a longer word
  bool lstrip = false;       ///< includes whitespace before it
  bool rstrip = false;       ///< includes whitespace after it
  /// Whether it is matched in the normalized text. Default: unless it is special.
  std::optional<bool> normalized = std::nullopt;
};

/// Converts text to tokens and back, as Hugging Face's `tokenizers` does with the same files:
/// byte-level and SentencePiece BPE, Unigram, WordPiece. Text is UTF-8; each maximal subpart of an
/// invalid sequence becomes U+FFFD. Several threads may encode and decode concurrently.
class REDCO_API Tokenizer {
 public:
  /// Reads a folder - tokenizer.json, else spiece.model or tokenizer.model, else vocab.json with
  /// merges.txt, else vocab.txt, along with tokenizer_config.json and special_tokens_map.json - or
  /// one such file, or the tokenizer in a GGUF file. Throws Error, with the file and the key, for
  /// damaged or unsupported content.
  static Tokenizer from_pretrained(const std::string& path);

  /// The readers of each format, for bytes in memory. Error messages begin with `where`.
  static Tokenizer from_json(const std::string& where, std::string_view tokenizer_json);
  /// A bare SentencePiece model does not recognise its control tokens in text, and adds none.
  static Tokenizer from_sentencepiece(const std::string& where, std::string_view model);
  /// Reads BERT's vocab.txt, with the settings of an uncased model and its special tokens.
  static Tokenizer from_vocab_txt(const std::string& where, std::string_view vocab);
  static Tokenizer from_parts(const std::string& where, const TokenizerParts& parts);

  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  Encoding encode(std::string_view text, const EncodeOptions& options = {}) const;
  Encoding encode(std::string_view text, std::string_view pair,
                  const EncodeOptions& options = {}) const;
  /// `pairs` is empty or as long as `texts`.
  BatchEncoding encode_batch(const std::vector<std::string>& texts,
                             const BatchOptions& options = {},
                             const std::vector<std::string>& pairs = {}) const;

  /// Ids without a token decode to nothing, because models may have more rows than tokens. Throws
  /// Error for negative ids.
  std::string decode(const std::vector<int64_t>& ids, const DecodeOptions& options = {}) const;

  /// The number of tokens, including added ones.
  int64_t size() const;
  /// The number of tokens of the model, without added ones.
  int64_t vocab_size() const;
  std::optional<int64_t> token_to_id(std::string_view token) const;
  /// None if no token has this id.
  std::optional<std::string> id_to_token(int64_t id) const;
  bool is_special(int64_t id) const;
  /// The bytes that a token adds to a text that has begun. They may be a part of a character. None
  /// for ids without a token and for special tokens.
  std::optional<std::string> bytes_of(int64_t id) const;

  /// The token with the role "bos", "eos", "unk", "sep", "cls", "pad" or "mask", if any.
  std::optional<std::string> special_token(const std::string& role) const;
  std::optional<int64_t> special_token_id(const std::string& role) const;
  /// Throws Error for other roles and for a token that is not in the vocabulary.
  void set_special_token(const std::string& role, const std::string& token);
  /// Special tokens without a role.
  const std::vector<std::string>& additional_special_tokens() const;
  void set_additional_special_tokens(std::vector<std::string> tokens);
  /// Adds tokens, as `transformers` does: a new one gets the next free number, one of the
  /// vocabulary keeps its own. Returns how many were added or match in another way than before.
  /// No other thread may use the tokenizer meanwhile.
  int64_t add_tokens(const std::vector<NewToken>& tokens);

  Side padding_side() const;
  void set_padding_side(Side side);
  /// The side on which texts are truncated.
  Side truncation_side() const;
  void set_truncation_side(Side side);
  /// The maximum number of tokens of the model; none if the files do not specify it.
  std::optional<int64_t> model_max_length() const;
  /// Whether the model of these files takes the token_type_ids of a batch.
  bool returns_type_ids() const;
  /// Whether it takes the attention_mask. SigLIP's does not.
  bool returns_mask() const;
  /// The chat template, in Jinja; "" if there is none.
  const std::string& chat_template() const;
  /// Replaces it, also for conversations with tools. The syntax is checked when it is used.
  void set_chat_template(std::string text);

  /// Renders a conversation with the chat template. `messages` is a list of objects, usually with
  /// "role" and "content". `variables` are the template's other variables, such as tools; with
  /// tools the template named "tool_use" is used if there is one. engine/text/template/jinja.h
  /// lists the supported part of Jinja. Throws Error for the rest and for raise_exception.
  std::string apply_chat_template(const Json& messages, bool add_generation_prompt = false,
                                  const Json::Object& variables = {}) const;

  /// Tokenizes a conversation that the chat template renders. The template marks what the model
  /// says by blocks {% generation %}. Throws Error as apply_chat_template, and if such a block is
  /// in a macro or in a block whose output is captured.
  ChatEncoding encode_chat(const Json& messages, bool add_generation_prompt = false,
                           const Json::Object& variables = {}) const;

  /// Writes the files the tokenizer was read from into a folder, which is created if necessary, and
  /// removes those of another. The files are the same byte for byte unless tokens, their roles or
  /// the chat template were changed. Throws Error if it was not read from files.
  void save_pretrained(const std::string& folder) const;

  /// The parts, with which `from_parts` makes a tokenizer that cuts texts in the same way. Throws
  /// Error for kinds of tokenizers that they do not describe.
  TokenizerParts parts() const;

  struct State;
  explicit Tokenizer(std::unique_ptr<State> state);

 private:
  friend class DecodeStream;

  const text::Settings& settings() const;
  // Skips ids without a token.
  std::vector<std::string> tokens_of(const std::vector<int64_t>& ids,
                                     bool skip_special_tokens) const;
  // Whether the bytes of these tokens end in an incomplete character, which further tokens may
  // complete.
  bool ends_inside_character(const std::vector<int64_t>& ids, const DecodeOptions& options) const;

  std::string decode_tokens(const std::vector<int64_t>& ids, const DecodeOptions& options) const;
  std::string decode_with_times(std::vector<int64_t> ids, const DecodeOptions& options) const;

  std::unique_ptr<State> state_;
};

/// Decodes tokens one by one, as a model generates them. A character that spans several tokens is
/// held back until it is complete; text that was returned is never revised.
class REDCO_API DecodeStream {
 public:
  explicit DecodeStream(std::shared_ptr<const Tokenizer> tokenizer, DecodeOptions options = {});

  /// Adds a token and returns the new text; "" while a character is incomplete.
  std::string step(int64_t id);
  /// Returns the text that was held back.
  std::string finish();

 private:
  std::string fresh() const;

  std::shared_ptr<const Tokenizer> tokenizer_;
  DecodeOptions options_;
  std::vector<int64_t> ids_;
  size_t shown_ = 0;  ///< the number of ids_ already shown; they are the context of the next ones
};

}  // namespace redco
