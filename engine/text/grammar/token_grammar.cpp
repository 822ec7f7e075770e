// Which tokens may follow others so that the text fits a grammar.

#include "automaton.h"
#include "json_grammar.h"

#include <redco/detail/token_grammar.h>
#include <redco/error.h>

#include <ATen/ops/clone.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace redco {

using text::Automaton;
using text::Grammar;

namespace {

constexpr size_t most_known = 64;

}  // namespace

TokenTexts::TokenTexts(const Tokenizer& tokenizer) {
  // Numbers may have gaps.
  const int64_t n = tokenizer.size();
  for (int64_t id = 0, found = 0; found < n && id < 4 * n + 1024; ++id) {
    const auto token = tokenizer.id_to_token(id);
    found += token.has_value();
    const auto bytes = tokenizer.bytes_of(id);
    by_id.push_back(bytes.value_or(""));
    if (bytes && !bytes->empty()) sorted.push_back({*bytes, id, 0});
    if (token && !bytes) special_tokens.emplace_back(*token, id);
  }
  std::sort(sorted.begin(), sorted.end(),
            [](const Entry& a, const Entry& b) { return a.bytes < b.bytes; });
  for (size_t i = 1; i < sorted.size(); ++i) {
    const std::string &a = sorted[i - 1].bytes, &b = sorted[i].bytes;
    const auto end = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first;
    sorted[i].shared = size_t(end - a.begin());
  }
  std::sort(special_tokens.begin(), special_tokens.end(),
            [](const auto& a, const auto& b) { return a.first.size() > b.first.size(); });
}

namespace {

// Makes the nodes of a list of parts.
class PartsReader {
 public:
  PartsReader(std::string where, const TokenTexts& texts, Grammar& grammar)
      : where_(std::move(where)), texts_(texts), g_(grammar), json_(grammar) {}

  Grammar::Node read(const Json& parts) {
    const auto* list = parts.get<Json::List>();
    require(list != nullptr, where_, ": expected a list of parts");
    std::vector<Grammar::Node> nodes;
    for (const Json& part : *list) nodes.push_back(read_part(part));
    return g_.sequence(std::move(nodes));
  }

 private:
  Grammar::Node read_part(const Json& part) {
    if (const auto* given = part.get<std::string>()) return literal(*given);
    const auto* members = part.get<Json::Object>();
    require(members != nullptr && members->size() == 1, where_, ": a part has one member");
    const auto& [kind, value] = members->front();
    if (kind == "schema") return json_.of_schema(where_, value);
    if (kind == "json") return json_.any_object();
    const auto* options = value.get<Json::List>();
    require(kind == "any_of" && options != nullptr, where_, ": unknown part ", kind);
    std::vector<Grammar::Node> nodes;
    for (const Json& each : *options) nodes.push_back(read(each));
    return g_.choice(std::move(nodes));
  }

  Grammar::Node literal(std::string_view given) {
    std::vector<Grammar::Node> nodes;
    size_t done = 0;
    for (size_t at = 0; at < given.size();) {
      const auto& all = texts_.special_tokens;
      auto found = std::find_if(all.begin(), all.end(), [&](const auto& token) {
        return !token.first.empty() && given.substr(at).starts_with(token.first);
      });
      if (found == all.end()) {
        ++at;
        continue;
      }
      nodes.push_back(g_.literal(given.substr(done, at - done)));
      nodes.push_back(g_.special(found->second));
      done = at += found->first.size();
    }
    nodes.push_back(g_.literal(given.substr(done)));
    return g_.sequence(std::move(nodes));
  }

  std::string where_;
  const TokenTexts& texts_;
  Grammar& g_;
  text::JsonGrammar json_;
};

Automaton automaton_of(const std::string& where, const TokenTexts& texts, const Json& parts) {
  Grammar grammar;
  PartsReader reader(where, texts, grammar);
  // Tokens of words may begin with a space.
  const Grammar::Node root =
      grammar.sequence({grammar.optional(grammar.literal(" ")), reader.read(parts)});
  require(grammar.prune()[root], where, ": no finite text fits");
  return {std::move(grammar), root};
}

}  // namespace

struct TokenGrammar::Parts {
  Automaton automaton;
  /// The tokens after some states: a text in quotes has one state for all its characters.
  std::unordered_map<Automaton::State, Next> known = {};
  int64_t vocab_size = 0;  ///< of `known`

  Next next_of(Automaton::State state, const TokenTexts& texts, int64_t vocab_size);
};

TokenGrammar::TokenGrammar(const std::string& where, std::shared_ptr<const TokenTexts> texts,
                           const Json& parts)
    : texts_(std::move(texts)),
      parts_(std::make_unique<Parts>(Parts{automaton_of(where, *texts_, parts)})) {}

TokenGrammar::~TokenGrammar() = default;

std::optional<TokenGrammar::Next> TokenGrammar::after(const std::vector<int64_t>& tokens,
                                                      int64_t vocab_size) {
  Automaton& automaton = parts_->automaton;
  auto& known = parts_->known;
  const bool is_forgotten = automaton.forget_if_large();
  if (is_forgotten || known.size() >= most_known || vocab_size != parts_->vocab_size) known.clear();
  parts_->vocab_size = vocab_size;
  Automaton::State state = automaton.start();
  auto read = [&](uint32_t symbol) {
    if (state != Automaton::dead) state = automaton.next(state, symbol);
  };
  for (int64_t token : tokens) {
    require(token >= 0, "the token ", token, " is negative");
    const bool has_bytes = token < int64_t(texts_->by_id.size()) && !texts_->by_id[token].empty();
    if (!has_bytes) read(uint32_t(Grammar::first_special + token));
    if (has_bytes)
      for (char c : texts_->by_id[size_t(token)]) read(static_cast<unsigned char>(c));
  }
  if (state == Automaton::dead) return std::nullopt;

  auto found = known.find(state);
  if (found == known.end())
    found = known.emplace(state, parts_->next_of(state, *texts_, vocab_size)).first;
  Next next = found->second;
  next.is_allowed = next.is_allowed.clone();
  return next;
}

TokenGrammar::Next TokenGrammar::Parts::next_of(Automaton::State state, const TokenTexts& texts,
                                                int64_t vocab_size) {
  Next next{at::zeros({vocab_size}, at::kBool), false, automaton.is_complete(state)};
  bool* allowed = next.is_allowed.mutable_data_ptr<bool>();
  auto allow = [&](int64_t id) {
    if (id < vocab_size) allowed[id] = next.has_any = true;
  };
  // The state after each byte of an entry; after `n_fit` bytes there is none.
  std::vector<Automaton::State> states{state};
  size_t n_fit = 0;
  for (const TokenTexts::Entry& entry : texts.sorted) {
    if (entry.shared > n_fit) continue;  // it shares bytes that did not fit
    n_fit = entry.shared;
    states.resize(n_fit + 1);
    while (n_fit < entry.bytes.size()) {
      const Automaton::State last =
          automaton.next(states[n_fit], static_cast<unsigned char>(entry.bytes[n_fit]));
      if (last == Automaton::dead) break;
      states.push_back(last);
      ++n_fit;
    }
    if (n_fit == entry.bytes.size()) allow(entry.id);
  }
  for (const auto& [name, id] : texts.special_tokens)
    if (automaton.next(state, uint32_t(Grammar::first_special + id)) != Automaton::dead) allow(id);
  return next;
}

}  // namespace redco
