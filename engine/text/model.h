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

/// A token of a word, and bytes [begin, end) of the word that it stands for.
struct Token {
  int64_t id;
  size_t begin;
  size_t end;
};

/// What turns a word into tokens.
class Model {
 public:
  virtual ~Model() = default;

  virtual void tokenize(std::string_view word, std::vector<Token>& tokens) const = 0;

  /// The token for what no other stands for, if there is one.
  virtual std::optional<int64_t> unknown_id() const = 0;
  /// Whether the unknown token is written as the text it was, not by its name.
  virtual bool shows_unknown_text() const = 0;

  /// Whether a text can be cut before space symbols that follow another character, and the parts be
  /// tokenized one by one, with the same tokens.
  virtual bool has_independent_words() const { return false; }

  const Vocabulary& vocabulary() const { return vocabulary_; }

 protected:
  explicit Model(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}

  Vocabulary vocabulary_;
};

/// The numbers of the tokens <0x00> to <0xFF>, for bytes that no other token stands for.
class ByteTokens {
 public:
  ByteTokens() = default;
  explicit ByteTokens(const Vocabulary& vocabulary);

  /// Appends the tokens of bytes [begin, end) of the word; false, and none, when one is missing.
  bool append(std::string_view word, size_t begin, size_t end, std::vector<Token>& tokens) const;

 private:
  std::array<std::optional<int64_t>, 256> ids_;
};

/// The byte that a token <0x41> stands for.
std::optional<unsigned char> byte_of_token(std::string_view token);

/// Byte-pair encoding: the characters of a word are joined in the order of the merges' ranks.
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
  /// Words that are tokens are taken whole.
  bool ignore_merges = false;
  bool shows_unknown_text = false;
};

/// Throws Error, beginning with `where`, for merges of tokens that the vocabulary lacks.
std::unique_ptr<Model> make_bpe(const std::string& where, BpeOptions options);

/// Unigram: of all ways to put a word together from pieces, the one of the greatest summed score.
struct UnigramOptions {
  struct Piece {
    std::string text;
    double score;
    /// Whether it is found in text; control pieces are not.
    bool in_text = true;
  };
  std::vector<Piece> pieces;
  std::optional<int64_t> unknown_id;
  bool byte_fallback = false;
  /// Whether scores are summed in float32, as the sentencepiece library does: of nearly equal sums
  /// rounding decides.
  bool in_float32 = false;
};

std::unique_ptr<Model> make_unigram(const std::string& where, UnigramOptions options);

}  // namespace redco::text
