// The Unigram model of SentencePiece.

#include "model.h"
#include "trie.h"
#include "utf8.h"

#include <redco/error.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace redco::text {

namespace {

// The penalty of an unknown character relative to the worst piece, as in SentencePiece.
constexpr double unknown_penalty = 10;

class Unigram final : public Model {
 public:
  Unigram(const std::string& where, UnigramOptions options);

  void tokenize(std::string_view word, std::vector<Token>& tokens) const override;
  std::optional<int64_t> unknown_id() const override { return unknown_id_; }
  bool shows_unknown_text() const override { return true; }

 private:
  // The best segmentation up to a position: its last piece and the beginning of that piece.
  struct Step {
    double score = -std::numeric_limits<double>::infinity();
    int64_t id = -1;
    size_t begin = 0;
    bool reached = false;
  };

  std::vector<double> scores_;
  std::optional<int64_t> unknown_id_;
  double sum(double a, double b) const { return in_float32_ ? float(a) + float(b) : a + b; }

  bool byte_fallback_;
  bool in_float32_;
  ByteTokens byte_tokens_;
  double unknown_score_ = -unknown_penalty;
  Trie trie_;
};

Vocabulary vocabulary_of(const std::vector<UnigramOptions::Piece>& pieces) {
  Vocabulary vocabulary;
  for (size_t i = 0; i < pieces.size(); ++i) vocabulary.add(pieces[i].text, int64_t(i));
  return vocabulary;
}

Unigram::Unigram(const std::string& where, UnigramOptions options)
    : Model(vocabulary_of(options.pieces)),
      unknown_id_(options.unknown_id),
      byte_fallback_(options.byte_fallback),
      in_float32_(options.in_float32) {
  size_t n = options.pieces.size();
  require(n > 0, where, "the vocabulary is empty");
  if (unknown_id_)
    require(*unknown_id_ >= 0 && *unknown_id_ < int64_t(n), where,
            "the unknown token has the number ", *unknown_id_, ", there are ", n, " pieces");
  if (byte_fallback_) byte_tokens_ = ByteTokens(vocabulary_);
  double lowest = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < n; ++i) {
    const auto& piece = options.pieces[i];
    require(std::isfinite(piece.score), where, "the score of piece ", i, " is not finite");
    scores_.push_back(piece.score);
    if (!piece.in_text) continue;
    lowest = std::min(lowest, piece.score);
    trie_.add(piece.text, int32_t(i));
  }
  if (std::isfinite(lowest)) unknown_score_ = sum(lowest, -unknown_penalty);
}

void Unigram::tokenize(std::string_view word, std::vector<Token>& tokens) const {
  std::vector<Step> steps(word.size() + 1);
  constexpr int64_t unknown = -1;
  steps[0].score = 0;
  for (size_t begin = 0; begin < word.size();) {
    double score = steps[begin].score;
    size_t size = std::min(character_size(word[begin]), word.size() - begin);
    bool has_character = false;
    auto offer = [&](size_t length, double offered, int64_t id) {
      Step& step = steps[begin + length];
      if (!step.reached || offered > step.score) step = {offered, id, begin, true};
    };
    trie_.each_prefix(word.substr(begin), [&](size_t length, int32_t id) {
      offer(length, sum(score, scores_[size_t(id)]), id);
      has_character |= length == size;
    });
    if (!has_character) offer(size, sum(score, unknown_score_), unknown);
    begin += size;
  }
  size_t first = tokens.size();
  for (size_t end = word.size(); end > 0; end = steps[end].begin)
    tokens.push_back({steps[end].id, steps[end].begin, end});
  std::vector<Token> reversed(tokens.begin() + ptrdiff_t(first), tokens.end());
  tokens.resize(first);
  for (size_t i = reversed.size(); i-- > 0;) {
    Token token = reversed[i];
    bool is_unknown = token.id == unknown || token.id == unknown_id_;
    // A run of unknown characters is one unknown token.
    while (is_unknown && i > 0 &&
           (reversed[i - 1].id == unknown || reversed[i - 1].id == unknown_id_))
      token.end = reversed[--i].end;
    // A run that equals a piece, namely the unknown piece's own name, becomes that piece.
    std::optional<int64_t> whole;
    if (is_unknown)
      trie_.each_prefix(word.substr(token.begin, token.end - token.begin),
                        [&](size_t length, int32_t id) {
                          if (length == token.end - token.begin) whole = id;
                        });
    if (whole) {
      tokens.push_back({*whole, token.begin, token.end});
      continue;
    }
    size_t n_before = tokens.size();
    if (is_unknown && byte_fallback_ && byte_tokens_.append(word, token.begin, token.end, tokens)) {
      // Each byte token covers the whole run.
      for (size_t k = n_before; k < tokens.size(); ++k)
        tokens[k] = {tokens[k].id, token.begin, token.end};
      continue;
    }
    require(!is_unknown || unknown_id_, "the tokenizer has no token for '",
            word.substr(token.begin, token.end - token.begin), "', and none for the unknown");
    if (is_unknown) token.id = *unknown_id_;
    tokens.push_back(token);
  }
}

}  // namespace

std::unique_ptr<Model> make_unigram(const std::string& where, UnigramOptions options) {
  return std::make_unique<Unigram>(where, std::move(options));
}

}  // namespace redco::text
