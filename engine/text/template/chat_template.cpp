// Applies chat templates to conversations.

#include "../readers.h"
#include "../tokenizer_state.h"
#include "../utf8.h"
#include "jinja.h"

#include <redco/error.h>
#include <redco/tokenizer.h>

#include <algorithm>
#include <string_view>

namespace redco {

namespace {

using text::jinja::Value;

void check_messages(const Json& messages) {
  const auto* list = messages.get<Json::List>();
  const auto* object = messages.get<Json::Object>();
  require(list || object, "apply_chat_template: expected a list of messages");
  require(
      !object || object->empty(),
      "apply_chat_template: one message, expected a list of them: {{role = ..., content = ...}}");
  require(list && !list->empty(), "apply_chat_template: there are no messages");
  for (size_t i = 0; i < list->size(); ++i) {
    const auto* message = (*list)[i].get<Json::Object>();
    require(message && !message->empty(), "apply_chat_template: message ", i + 1,
            " is no table with names, expected {role = ..., content = ...}");
  }
}

const std::string& chosen_template(const text::Settings& settings, const Json::Object& variables) {
  bool has_tools = std::any_of(variables.begin(), variables.end(), [](const auto& variable) {
    return variable.first == "tools" && !variable.second.template get<std::monostate>();
  });
  const std::string& chosen = has_tools && !settings.tool_template.empty() ? settings.tool_template
                                                                           : settings.chat_template;
  require(!chosen.empty(), "apply_chat_template: the tokenizer's files hold no chat_template");
  return chosen;
}

Value::Named given_variables(const text::Settings& settings, const Json& messages,
                             bool add_generation_prompt, const Json::Object& variables) {
  check_messages(messages);
  // As in `transformers`, the variables tools and documents always exist, as none if not given.
  Value::Named given = {{"messages", text::jinja::from_json(messages)},
                        {"tools", {Value::None()}},
                        {"documents", {Value::None()}},
                        {"add_generation_prompt", {add_generation_prompt}}};
  for (const auto& [role, token] : settings.special_tokens)
    given.emplace_back(role + "_token", Value{token});
  if (!settings.additional_special_tokens.empty()) {
    Value::List tokens;
    for (const std::string& token : settings.additional_special_tokens) tokens.push_back({token});
    given.emplace_back("additional_special_tokens", text::jinja::make_list(std::move(tokens)));
  }
  for (const auto& [name, value] : variables)
    given.emplace_back(name, text::jinja::from_json(value));
  return given;
}

// Returns 1 for the tokens of each span: from the first to the last token with characters of the
// span.
std::vector<int64_t> mask_of(const Encoding& encoding, const std::string& text,
                             const text::jinja::Spans& spans) {
  std::vector<int64_t> mask(encoding.ids.size());
  size_t at = 0, seen = 0;  // a token, and the bytes that `characters` counts
  int64_t characters = 0;
  auto count_to = [&](size_t byte) {
    std::string_view more = std::string_view(text).substr(seen, byte - seen);
    characters += int64_t(text::count_characters(text::valid_utf8(more)));
    seen = byte;
    return characters;
  };
  for (auto [first, last] : spans) {
    int64_t begin = count_to(first), end = count_to(last);
    while (at < mask.size() && encoding.offsets[at].second <= begin) ++at;
    size_t behind = at;
    for (size_t i = at; i < mask.size() && encoding.offsets[i].first < end; ++i)
      if (encoding.offsets[i].second > begin) behind = i + 1;
    std::fill(mask.begin() + int64_t(at), mask.begin() + int64_t(behind), 1);
  }
  return mask;
}

}  // namespace

std::string Tokenizer::apply_chat_template(const Json& messages, bool add_generation_prompt,
                                           const Json::Object& variables) const {
  Value::Named given = given_variables(settings(), messages, add_generation_prompt, variables);
  return text::jinja::render(text::jinja::parse(chosen_template(settings(), variables)), given);
}

ChatEncoding Tokenizer::encode_chat(const Json& messages, bool add_generation_prompt,
                                    const Json::Object& variables) const {
  Value::Named given = given_variables(settings(), messages, add_generation_prompt, variables);
  auto nodes = text::jinja::parse(chosen_template(settings(), variables));
  const bool is_marked = text::jinja::marks_generation(nodes);
  text::jinja::Spans spans;
  std::string text = text::jinja::render(nodes, given, is_marked ? &spans : nullptr);
  EncodeOptions options;
  options.with_offsets = is_marked;
  // The template writes the special tokens. Offsets here include the blanks that many tokenizers
  // leave out of them.
  Encoding encoding = state_->encode_text(text, options);
  ChatEncoding result;
  if (is_marked) result.assistant_mask = mask_of(encoding, text, spans);
  result.ids = std::move(encoding.ids);
  return result;
}

}  // namespace redco
