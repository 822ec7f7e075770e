// The WordPiece model of BERT: the longest token that begins a word, then the longest that
// continues it, to the word's end.

#include "model.h"
#include "readers.h"
#include "trie.h"
#include "utf8.h"

#include "../io/strict_json.h"

#include <redco/error.h>

namespace redco::text {

using namespace io;

namespace {

class WordPiece final : public Model {
 public:
  explicit WordPiece(WordPieceOptions options);

  void tokenize(std::string_view word, std::vector<Token>& tokens) const override;
  std::optional<int64_t> unknown_id() const override { return unknown_id_; }
  bool shows_unknown_text() const override { return false; }

 private:
  void add_unknown(std::string_view word, std::vector<Token>& tokens) const;

  std::optional<int64_t> unknown_id_;
  size_t longest_word_;
  Trie first_;  ///< tokens that begin a word
  Trie rest_;   ///< tokens that continue one, without the prefix
};

WordPiece::WordPiece(WordPieceOptions options)
    : Model(std::move(options.vocabulary)),
      unknown_id_(vocabulary_.id(options.unknown_token)),
      longest_word_(options.longest_word) {
  for (const auto& [token, id] : vocabulary_.ids()) {
    first_.add(token, int32_t(id));
    std::string_view rest = token;
    if (!rest.starts_with(options.continuing_prefix)) continue;
    rest.remove_prefix(options.continuing_prefix.size());
    rest_.add(rest, int32_t(id));
  }
}

void WordPiece::add_unknown(std::string_view word, std::vector<Token>& tokens) const {
  require(unknown_id_.has_value(), "the tokenizer has no token for '", word,
          "', and none for the unknown");
  tokens.push_back({*unknown_id_, 0, word.size()});
}

void WordPiece::tokenize(std::string_view word, std::vector<Token>& tokens) const {
  if (word.size() > longest_word_ && count_characters(word) > longest_word_)
    return add_unknown(word, tokens);
  size_t n_before = tokens.size();
  for (size_t begin = 0; begin < word.size();) {
    Token longest{0, begin, begin};
    (begin == 0 ? first_ : rest_).each_prefix(word.substr(begin), [&](size_t size, int32_t id) {
      longest = {id, begin, begin + size};
    });
    if (longest.end == begin) {
      tokens.resize(n_before);
      return add_unknown(word, tokens);
    }
    tokens.push_back(longest);
    begin = longest.end;
  }
}

}  // namespace

std::unique_ptr<Model> make_wordpiece(WordPieceOptions options) {
  return std::make_unique<WordPiece>(std::move(options));
}

Pipeline read_vocab_txt(const std::string& where, std::string_view text,
                        const std::string& unknown_token, BertSpec spec) {
  WordPieceOptions options;
  options.unknown_token = unknown_token;
  int64_t n = 0;
  for (size_t begin = 0; begin < text.size(); ++n) {
    size_t end = std::min(text.find('\n', begin), text.size());
    std::string token(text.substr(begin, end - begin));
    if (token.ends_with('\r')) token.pop_back();
    require(valid_utf8(token) == token, where, "line ", n + 1, " is not valid UTF-8");
    options.vocabulary.add(token, n);
    begin = end + 1;
  }
  require(options.vocabulary.id(unknown_token).has_value(), where, "the unknown token ",
          in_quotes(unknown_token), " is not in the vocabulary of ", n, " lines");
  Pipeline pipeline;
  pipeline.normalizers = {bert_normalization(spec)};
  pipeline.pre_tokenizers = {bert_words()};
  pipeline.model = make_wordpiece(std::move(options));
  pipeline.decoders = {decode_wordpiece("##", true)};
  return pipeline;
}

void add_bert_template(const std::string& where, Pipeline& pipeline, Settings& settings) {
  std::vector<AddedToken> around;
  for (auto [role, name] :
       {std::pair("cls", "[CLS]"), std::pair("sep", "[SEP]"), std::pair("pad", "[PAD]"),
        std::pair("unk", "[UNK]"), std::pair("mask", "[MASK]")}) {
    const std::string& content = settings.special_tokens.try_emplace(role, name).first->second;
    auto id = pipeline.model->vocabulary().id(content);
    if (around.size() == 2) continue;
    require(id.has_value(), where, role, "_token is ", in_quotes(content),
            ", which is not in the vocabulary");
    around.push_back({.content = content, .id = *id, .special = true});
  }
  pipeline.post_processor.around = surround_like_bert(around[0], around[1]);
}

}  // namespace redco::text
