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

/// A text as tokens. All lists have the same length.
struct Encoding {
  std::vector<int64_t> ids;
  std::vector<std::string> tokens;
  /// Characters [begin, end) of the text for each token, counted in code points; {0, 0} for tokens
  /// that stand for none of it. Empty unless they were asked for.
  std::vector<std::pair<int64_t, int64_t>> offsets;
  /// 1 where a token was added by the tokenizer's template, such as <s>.
  std::vector<int64_t> special_tokens_mask;
  /// 1 for what belongs to the second text of a pair, by the template.
  std::vector<int64_t> type_ids;
};

enum class Side { left, right };

struct EncodeOptions {
  /// The template's tokens around the text, such as <s>. Tokens written out in the text are always
  /// recognised.
  bool add_special_tokens = true;
  /// Truncate to so many tokens, those of the template included; of a pair the longer text first.
  std::optional<int64_t> max_length;
  /// Default: the tokenizer's.
  std::optional<Side> truncation_side;
  bool with_tokens = false;
  bool with_offsets = false;
};

enum class Padding { none, longest, max_length };

struct BatchOptions {
  EncodeOptions encode;
  /// With `none` all texts must come out equally long.
  Padding padding = Padding::none;
  /// The length of Padding::max_length; longer rows are cut only by encode.max_length. Default: the
  /// tokenizer's `model_max_length`.
  std::optional<int64_t> padded_length;
  /// Default: the tokenizer's.
  std::optional<Side> padding_side;
  std::optional<int64_t> pad_to_multiple_of;
};

/// Rows of a batch, int64.
struct BatchEncoding {
  at::Tensor input_ids;            ///< [batch, length]
  at::Tensor attention_mask;       ///< [batch, length]: 0 on padding
  at::Tensor special_tokens_mask;  ///< [batch, length]: 1 also on padding
  at::Tensor offset_mapping;       ///< [batch, length, 2], undefined unless with_offsets
};

struct DecodeOptions {
  bool skip_special_tokens = false;
  /// Take back the spaces before punctuation. Default: the tokenizer's.
  std::optional<bool> clean_up_tokenization_spaces;
};

/// A tokenizer as other files than Hugging Face's carry it, GGUF's for one: what
/// `Tokenizer::from_parts` puts together.
struct TokenizerParts {
  enum class Model {
    byte_level_bpe,     ///< GPT-2's: `merges` and `pre_tokenizer` are needed
    sentencepiece_bpe,  ///< LLaMA's: `scores` say what is merged first
    unigram,            ///< T5's: `scores` are log-probabilities
  };
  /// As in SentencePiece's model files, and GGUF's.
  enum TokenType { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

  Model model = Model::byte_level_bpe;
  std::vector<std::string> tokens;  ///< by their numbers
  std::vector<float> scores;        ///< one for each token; for SentencePiece's models
  std::vector<int32_t> types;       ///< TokenType of each token; empty: all normal
  std::vector<std::string> merges;  ///< "left right", the first is merged first
  /// How text is cut into words: "gpt-2", "llama-bpe", "smollm" and others of GGUF's names.
  std::string pre_tokenizer = "gpt-2";
  std::optional<int64_t> bos_id, eos_id, unk_id, pad_id;
  bool add_bos = false;
  bool add_eos = false;
  bool add_space_prefix = true;           ///< SentencePiece's models only
  bool remove_extra_whitespaces = false;  ///< SentencePiece's models only
  std::string precompiled_charsmap;       ///< SentencePiece's models only; empty: none
  std::string chat_template;              ///< Jinja; empty: none
};

/// Text to tokens and back, as Hugging Face's `tokenizers` does it from the same files: byte-level
/// and SentencePiece BPE, Unigram. Text is UTF-8; each maximal subpart of bytes that are not
/// becomes U+FFFD. Encoding and decoding may run on several threads at once.
class REDCO_API Tokenizer {
 public:
  /// Reads a folder - tokenizer.json, else spiece.model or tokenizer.model, else vocab.json with
  /// merges.txt; tokenizer_config.json and special_tokens_map.json beside them - or one such file,
  /// or the tokenizer in a GGUF file.
  /// Throws Error, with the file and the key, for what is damaged or not supported.
  static Tokenizer from_pretrained(const std::string& path);

  /// The readers of the formats, on bytes in memory. `where` begins error messages.
  static Tokenizer from_json(const std::string& where, std::string_view tokenizer_json);
  /// A SentencePiece model alone finds none of its control tokens in text, and adds none.
  static Tokenizer from_sentencepiece(const std::string& where, std::string_view model);
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

  /// Numbers that are no token's become nothing: models may have more rows than tokens. Throws
  /// Error for negative ones.
  std::string decode(const std::vector<int64_t>& ids, const DecodeOptions& options = {}) const;

  /// Tokens of the model and those added.
  int64_t size() const;
  /// Tokens of the model, without those added.
  int64_t vocab_size() const;
  std::optional<int64_t> token_to_id(std::string_view token) const;
  /// Nothing when no token has this number.
  std::optional<std::string> id_to_token(int64_t id) const;
  bool is_special(int64_t id) const;

  /// "bos", "eos", "unk", "sep", "cls", "pad" or "mask": the token that has this role, if any.
  std::optional<std::string> special_token(const std::string& role) const;
  std::optional<int64_t> special_token_id(const std::string& role) const;
  /// Throws Error for other roles and for a token that the vocabulary lacks.
  void set_special_token(const std::string& role, const std::string& token);

  Side padding_side() const;
  void set_padding_side(Side side);
  /// The end at which texts are truncated.
  Side truncation_side() const;
  void set_truncation_side(Side side);
  /// Tokens the model takes; nothing when the files do not say.
  std::optional<int64_t> model_max_length() const;
  /// Jinja; "" when there is none.
  const std::string& chat_template() const;

  /// Renders a conversation, a list of objects with mostly "role" and "content", with the chat
  /// template. `variables` are the template's other variables, such as tools; with tools the
  /// template named "tool_use" is taken where the files have one. engine/text/jinja.h lists what of
  /// Jinja is supported. Throws Error for the rest and for raise_exception.
  std::string apply_chat_template(const Json& messages, bool add_generation_prompt = false,
                                  const Json::Object& variables = {}) const;

  /// Writes the files the tokenizer was read from, byte for byte, into a folder, which is made if
  /// need be.
  /// Throws Error where it was read from none.
  void save_pretrained(const std::string& folder) const;

  struct State;
  explicit Tokenizer(std::unique_ptr<State> state);

 private:
  friend class DecodeStream;

  const text::Settings& settings() const;
  // Without numbers that are no token's.
  std::vector<std::string> tokens_of(const std::vector<int64_t>& ids,
                                     bool skip_special_tokens) const;
  // Whether the bytes of these tokens end inside a character, which further tokens may complete.
  bool ends_inside_character(const std::vector<int64_t>& ids, const DecodeOptions& options) const;

  std::unique_ptr<State> state_;
};

/// Tokens to text one by one, as a model generates them. A character that takes several tokens is
/// held back until it is complete; text that was returned is never taken back.
class REDCO_API DecodeStream {
 public:
  explicit DecodeStream(std::shared_ptr<const Tokenizer> tokenizer, DecodeOptions options = {});

  /// What can be shown more with this token; "" while a character is incomplete.
  std::string step(int64_t id);
  /// What was held back.
  std::string finish();

 private:
  std::string fresh() const;

  std::shared_ptr<const Tokenizer> tokenizer_;
  DecodeOptions options_;
  std::vector<int64_t> ids_;
  size_t shown_ = 0;  ///< how many of ids_ have been shown; those before give the context
};

}  // namespace redco
