#include "token_adder.h"

#include "readers.h"

#include <redco/error.h>

#include <algorithm>

namespace redco::text {

namespace {

// Whether two tokens of the same text match alike.
bool are_same(const AddedToken& a, const AddedToken& b) {
  return a.special == b.special && a.single_word == b.single_word && a.lstrip == b.lstrip &&
         a.rstrip == b.rstrip && a.normalized == b.normalized;
}

}  // namespace

TokenAdder::TokenAdder(Pipeline& pipeline) : pipeline_(pipeline) {
  const auto& tokens = pipeline.added_tokens;
  for (size_t i = 0; i < tokens.size(); ++i) {
    places_[tokens[i].content] = i;
    largest_ = std::max(largest_, tokens[i].id);
  }
}

bool TokenAdder::add(AddedToken token) {
  if (token.content.empty()) return false;
  auto& tokens = pipeline_.added_tokens;
  if (auto place = places_.find(token.content); place != places_.end()) {
    AddedToken& known = tokens[place->second];
    if (are_same(known, token)) return false;
    token.id = known.id;
    token.special |= known.special;
    known = std::move(token);
    return true;
  }
  const Vocabulary& vocabulary = pipeline_.model->vocabulary();
  auto next = std::max(largest_ + 1, int64_t(vocabulary.size()));
  token.id = vocabulary.id(token.content).value_or(next);
  require(token.id <= largest_id, "there is no number for the token ", token.content);
  largest_ = std::max(largest_, token.id);
  places_[token.content] = tokens.size();
  tokens.push_back(std::move(token));
  return true;
}

}  // namespace redco::text
