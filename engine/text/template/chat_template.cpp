// Applies chat templates to conversations.

#include "../readers.h"
#include "jinja.h"

#include <redco/error.h>
#include <redco/tokenizer.h>

namespace redco {

namespace {

using text::jinja::Value;

Value to_value(const Json& json) {
  if (auto boolean = json.get<bool>()) return {*boolean};
  if (auto integer = json.get<int64_t>()) return {*integer};
  if (auto real = json.get<double>()) return {*real};
  if (auto text = json.get<std::string>()) return {*text};
  if (auto entries = json.get<Json::List>()) {
    Value::List list;
    for (const Json& entry : *entries) list.push_back(to_value(entry));
    return text::jinja::make_list(std::move(list));
  }
  if (auto entries = json.get<Json::Object>()) {
    Value::Dict dict;
    for (const auto& [key, entry] : *entries) dict.emplace_back(Value{key}, to_value(entry));
    return text::jinja::make_dict(std::move(dict));
  }
  return {Value::None()};
}

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

}  // namespace

std::string Tokenizer::apply_chat_template(const Json& messages, bool add_generation_prompt,
                                           const Json::Object& variables) const {
  check_messages(messages);
  // As in `transformers`, the variables tools and documents always exist, as none if not given.
  Value::Named given = {{"messages", to_value(messages)},
                        {"tools", {Value::None()}},
                        {"documents", {Value::None()}},
                        {"add_generation_prompt", {add_generation_prompt}}};
  const text::Settings& settings = this->settings();
  for (const auto& [role, token] : settings.special_tokens)
    given.emplace_back(role + "_token", Value{token});
  if (!settings.additional_special_tokens.empty()) {
    Value::List tokens;
    for (const std::string& token : settings.additional_special_tokens) tokens.push_back({token});
    given.emplace_back("additional_special_tokens", text::jinja::make_list(std::move(tokens)));
  }
  bool has_tools = false;
  for (const auto& [name, value] : variables) {
    has_tools |= name == "tools" && !value.get<std::monostate>();
    given.emplace_back(name, to_value(value));
  }
  const std::string& chosen =
      has_tools && !settings.tool_template.empty() ? settings.tool_template : chat_template();
  require(!chosen.empty(), "apply_chat_template: the tokenizer's files hold no chat_template");
  return text::jinja::render(text::jinja::parse(chosen), given);
}

}  // namespace redco
