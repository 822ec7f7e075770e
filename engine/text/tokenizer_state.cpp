// The state of a Tokenizer: its added tokens.
#include "tokenizer_state.h"

#include "token_adder.h"

#include <redco/error.h>

#include <utility>

namespace redco {

using namespace text;

void text::check_growth(size_t given, size_t made) {
  require(made <= 1'000'000 + 1000 * given, "the tokenizer makes ", made, " bytes of ", given);
}

Tokenizer::State::State(Pipeline made, Settings given, std::map<std::string, std::string> read)
    : pipeline(std::move(made)), settings(std::move(given)), files(std::move(read)) {
  if (pipeline.model->has_independent_words())
    pipeline.pre_tokenizers.push_back(split_before_space_symbols());
  TokenAdder adder(pipeline);
  for (const auto& [role, content] : settings.special_tokens)
    if (!adder.has(content) && pipeline.model->vocabulary().id(content))
      adder.add({.content = content, .special = true});
  index_added_tokens();
}

void Tokenizer::State::normalize(Text& text) const {
  size_t given = text.size();
  for (const Normalizer& step : pipeline.normalizers) {
    step(text);
    check_growth(given, text.size());
  }
}

void Tokenizer::State::index_added_tokens() {
  in_given = in_normalized = {};
  added.clear();
  added_by_id.clear();
  for (bool special : {true, false}) {
    for (const AddedToken& token : pipeline.added_tokens) {
      if (token.special != special) continue;
      added.insert_or_assign(token.content, token);
      added_by_id.insert_or_assign(token.id, token.content);
      if (token.normalized) {
        Text key(token.content, 0, false);
        normalize(key);
        in_normalized.add(token, key.bytes());
      } else {
        in_given.add(token, token.content);
      }
    }
  }
  for (const AddedToken& token : pipeline.normalized_tokens) {
    in_normalized.add(token, token.content);
    added.insert_or_assign(token.content, token);
  }
  if (!settings.splits_special_tokens) return;
  in_given.leave_out_special();
  in_normalized.leave_out_special();
}

int64_t Tokenizer::State::add(const std::vector<AddedToken>& tokens) {
  TokenAdder adder(pipeline);
  int64_t n = 0;
  for (const AddedToken& token : tokens) n += adder.add(token);
  if (n > 0) index_added_tokens();
  is_changed |= n > 0;
  return n;
}

}  // namespace redco
