// Byte-pair encoding of words.

#include "model.h"
#include "utf8.h"

#include <redco/error.h>

#include <algorithm>

namespace redco::text {

namespace {

struct Merge {
  int32_t rank;
  int32_t id;
};

// A symbol of the word, with the indices of its neighbours; -1 at the ends.
struct Symbol {
  int32_t id;
  int32_t previous;
  int32_t next;
  size_t begin;
  size_t end;
};

// A possible merge of two neighbours. Stale once either was merged.
struct Candidate {
  int32_t rank;
  int32_t position;
  int32_t left_id;
  int32_t right_id;
  int32_t merged_id;

  // The top of the heap has the lowest rank; among equals it is the leftmost.
  bool operator<(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : position > other.position;
  }
};

uint64_t pair_key(int32_t left, int32_t right) {
  return uint64_t{uint32_t(left)} << 32 | uint32_t(right);
}

class Bpe final : public Model {
 public:
  Bpe(const std::string& where, BpeOptions options);

  void tokenize(std::string_view word, std::vector<Token>& tokens) const override;
  std::optional<int64_t> unknown_id() const override { return unknown_id_; }
  bool shows_unknown_text() const override { return options_.shows_unknown_text; }
  bool has_independent_words() const override;

 private:
  void characters(std::string_view word, std::vector<Token>& tokens) const;
  void merge(std::vector<Symbol>& symbols) const;
  const Merge* find(int32_t left, int32_t right) const {
    auto found = merges_.find(pair_key(left, right));
    return found == merges_.end() ? nullptr : &found->second;
  }

  BpeOptions options_;  ///< vocabulary and merges are moved out
  std::optional<int64_t> unknown_id_;
  ByteTokens byte_tokens_;
  std::unordered_map<uint64_t, Merge> merges_;
};

Bpe::Bpe(const std::string& where, BpeOptions options)
    : Model(std::move(options.vocabulary)), options_(std::move(options)) {
  if (options_.unknown_token) {
    unknown_id_ = vocabulary_.id(*options_.unknown_token);
    require(unknown_id_.has_value(), where, "the unknown token '", *options_.unknown_token,
            "' is not in the vocabulary");
  }
  if (options_.byte_fallback) byte_tokens_ = ByteTokens(vocabulary_);
  const std::string& prefix = options_.continuing_prefix;
  merges_.reserve(options_.merges.size());
  for (const BpeOptions::Merge& merge : options_.merges) {
    auto id_of = [&](const std::string& token) {
      auto id = vocabulary_.id(token);
      require(id.has_value(), where, "the merge of '", merge.left, "' and '", merge.right,
              "' needs the token '", token, "', which is not in the vocabulary");
      return int32_t(*id);
    };
    bool continues = !prefix.empty() && merge.right.starts_with(prefix);
    int32_t left = id_of(merge.left), right = id_of(merge.right);
    int32_t id = id_of(merge.left + merge.right.substr(continues ? prefix.size() : 0));
    merges_.insert_or_assign(pair_key(left, right), Merge{merge.rank, id});
  }
  options_.merges = {};
}

// Whether words are independent: no token has a space symbol after another character, or depends on
// the ends of words.
bool Bpe::has_independent_words() const {
  bool depends_on_ends =
      !options_.continuing_prefix.empty() || !options_.end_suffix.empty() || options_.ignore_merges;
  if (depends_on_ends || !vocabulary_.id(space_symbol)) return false;
  for (const auto& [token, id] : vocabulary_.ids()) {
    size_t i = 0;
    while (std::string_view(token).substr(i).starts_with(space_symbol)) i += space_symbol.size();
    if (token.find(space_symbol, i) != token.npos) return false;
  }
  return true;
}

// Appends the word's characters as tokens, before any merge.
void Bpe::characters(std::string_view word, std::vector<Token>& tokens) const {
  bool decorated = !options_.continuing_prefix.empty() || !options_.end_suffix.empty();
  bool after_unknown = false;
  std::string dressed;
  for (size_t begin = 0; begin < word.size();) {
    size_t end = std::min(begin + character_size(word[begin]), word.size());
    std::string_view symbol = word.substr(begin, end - begin);
    if (decorated) {
      dressed = begin > 0 ? options_.continuing_prefix : "";
      dressed += symbol;
      if (end == word.size()) dressed += options_.end_suffix;
      symbol = dressed;
    }
    auto id = vocabulary_.id(symbol);
    bool unknown = false;
    if (id) {
      tokens.push_back({*id, begin, end});
    } else if (!options_.byte_fallback || !byte_tokens_.append(word, begin, end, tokens)) {
      // Without an unknown token the character is dropped.
      unknown = unknown_id_.has_value();
      if (unknown && after_unknown && options_.fuse_unknown)
        tokens.back().end = end;
      else if (unknown)
        tokens.push_back({*unknown_id_, begin, end});
    }
    after_unknown = unknown;
    begin = end;
  }
}

void Bpe::merge(std::vector<Symbol>& symbols) const {
  std::vector<Candidate> heap;
  auto consider = [&](int32_t left) {
    int32_t right = left < 0 ? -1 : symbols[left].next;
    if (right < 0) return false;
    const Merge* merge = find(symbols[left].id, symbols[right].id);
    if (merge == nullptr) return false;
    heap.push_back({merge->rank, left, symbols[left].id, symbols[right].id, merge->id});
    return true;
  };
  for (size_t i = 0; i + 1 < symbols.size(); ++i) consider(int32_t(i));
  std::make_heap(heap.begin(), heap.end());
  while (!heap.empty()) {
    Candidate best = heap.front();
    std::pop_heap(heap.begin(), heap.end());
    heap.pop_back();
    Symbol& left = symbols[best.position];
    if (left.id != best.left_id || left.next < 0) continue;
    Symbol& right = symbols[left.next];
    if (right.id != best.right_id) continue;
    left.id = best.merged_id;
    left.end = right.end;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols[left.next].previous = best.position;
    if (consider(left.previous)) std::push_heap(heap.begin(), heap.end());
    if (consider(best.position)) std::push_heap(heap.begin(), heap.end());
  }
}

void Bpe::tokenize(std::string_view word, std::vector<Token>& tokens) const {
  if (options_.ignore_merges)
    if (auto id = vocabulary_.id(word)) {
      tokens.push_back({*id, 0, word.size()});
      return;
    }
  size_t first = tokens.size();
  characters(word, tokens);
  std::vector<Symbol> symbols;
  auto n = int32_t(tokens.size() - first);
  symbols.reserve(size_t(n));
  for (int32_t i = 0; i < n; ++i) {
    const Token& token = tokens[first + size_t(i)];
    symbols.push_back({int32_t(token.id), i - 1, i + 1 < n ? i + 1 : -1, token.begin, token.end});
  }
  merge(symbols);
  tokens.resize(first);
  for (const Symbol& symbol : symbols)
    if (symbol.id >= 0) tokens.push_back({symbol.id, symbol.begin, symbol.end});
}

}  // namespace

std::unique_ptr<Model> make_bpe(const std::string& where, BpeOptions options) {
  return std::make_unique<Bpe>(where, std::move(options));
}

}  // namespace redco::text
