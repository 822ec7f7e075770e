#include "jinja.h"

#include <redco/error.h>
#include <redco/tokenizer.h>

namespace redco {

namespace {

using text::jinja::Value;

Value to_value(const Tree& tree) {
  if (tree.is<bool>()) return {tree.as<bool>()};
  if (tree.is<int64_t>()) return {tree.as<int64_t>()};
  if (tree.is<double>()) return {tree.as<double>()};
  if (tree.is<std::string>()) return {tree.as<std::string>()};
  if (tree.is<Tree::List>()) {
    Value::List list;
    for (const Tree& entry : tree.as<Tree::List>()) list.push_back(to_value(entry));
    return text::jinja::make_list(std::move(list));
  }
  if (tree.is<Tree::Dict>()) {
    Value::Dict dict;
    for (const auto& [key, entry] : tree.as<Tree::Dict>()) dict.emplace_back(key, to_value(entry));
    return text::jinja::make_dict(std::move(dict));
  }
  require(tree.is_none(), "apply_chat_template: a message holds a ", tree.kind());
  return {Value::None()};
}

}  // namespace

std::string Tokenizer::apply_chat_template(const Tree& messages, bool add_generation_prompt,
                                           const Tree::Dict& variables) const {
  require(!chat_template().empty(),
          "apply_chat_template: the tokenizer's files hold no chat_template");
  Value::Dict given = {{"messages", to_value(messages)},
                       {"add_generation_prompt", {add_generation_prompt}}};
  for (const char* role : {"bos", "eos", "unk", "pad"})
    if (auto token = special_token(role))
      given.emplace_back(std::string(role) + "_token", Value{*token});
  for (const auto& [name, value] : variables) given.emplace_back(name, to_value(value));
  return text::jinja::render(text::jinja::parse(chat_template()), given);
}

}  // namespace redco
