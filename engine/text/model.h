#pragma once

#include "vocabulary.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace redco::text {

/// A token, and the bytes [begin, end) of the word that it covers.
struct Token {
  int64_t id;
  size_t begin;
  size_t end;
};

/// Converts words to tokens.
class Model {
 public:
  virtual ~Model() = default;

  virtual void tokenize(std::string_view word, std::vector<Token>& tokens) const = 0;

  /// The token for text that no other token covers, if any.
  virtual std::optional<int64_t> unknown_id() const = 0;
  /// Whether the unknown token is shown as its original text instead of its name.
  virtual bool shows_unknown_text() const = 0;

  /// Whether a text can be split before space symbols that follow another character, and the parts
  /// tokenized separately, with the same result.
  virtual bool has_independent_words() const { return false; }

  const Vocabulary& vocabulary() const { return vocabulary_; }

 protected:
  explicit Model(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}

  Vocabulary vocabulary_;
};

/// The ids of the tokens <0x00> to <0xFF>, for bytes that no other token covers.
class ByteTokens {
 public:
  ByteTokens() = default;
  explicit ByteTokens(const Vocabulary& vocabulary);

  /// Appends the tokens of bytes [begin, end) of the word. Returns false and appends none if one is
  /// missing.
  bool append(std::string_view word, size_t begin, size_t end, std::vector<Token>& tokens) const;

 private:
  std::array<std::optional<int64_t>, 256> ids_;
};

/// The byte of a token such as <0x41>.
std::optional<unsigned char> byte_of_token(std::string_view token);

/// Byte-pair encoding: the characters of a word are merged in the order of the merges' ranks.
struct BpeOptions {
  struct Merge {
    std::string left;
    std::string right;
    int32_t rank;
  };
  Vocabulary vocabulary;
  std::vector<Merge> merges;
  std::optional<std::string> unknown_token;
  std::string continuing_prefix;
  std::string end_suffix;
  bool fuse_unknown = false;
  bool byte_fallback = false;
  /// Words that are tokens are not split.
  bool ignore_merges = false;
  bool shows_unknown_text = false;
};

/// Throws Error, beginning with `where`, for merges of tokens that are not in the vocabulary.
std::unique_ptr<Model> make_bpe(const std::string& where, BpeOptions options);

/// Unigram: the segmentation of a word into pieces with the greatest total score.
struct UnigramOptions {
  struct Piece {
    std::string text;
    double score;
    /// Whether it is matched in text; control pieces are not.
    bool in_text = true;
  };
  std::vector<Piece> pieces;
  std::optional<int64_t> unknown_id;
  bool byte_fallback = false;
  /// Whether scores are summed in float32, as in the sentencepiece library, where rounding decides
  /// between nearly equal sums.
  bool in_float32 = false;
};

std::unique_ptr<Model> make_unigram(const std::string& where, UnigramOptions options);

struct WordPieceOptions {
  Vocabulary vocabulary;
  std::string unknown_token = "[UNK]";
  std::string continuing_prefix = "##";
  /// In characters; a longer word is unknown.
  size_t longest_word = 100;
};

std::unique_ptr<Model> make_wordpiece(WordPieceOptions options);

}  // namespace redco::text
