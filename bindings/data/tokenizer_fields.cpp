// The fields of a redco.Tokenizer.
#include "lua_tokenizer.h"
#include "state/values.h"

#include <redco/error.h>

#include <optional>
#include <string>

namespace redco::lua {

Side check_side(const std::string& what, const std::string& side) {
  require(side == "left" || side == "right", what, ": expected \"left\" or \"right\", got \"", side,
          "\"");
  return side == "left" ? Side::left : Side::right;
}

namespace {

constexpr const char* roles[] = {"bos", "eos", "unk", "sep", "cls", "pad", "mask"};

// Returns the role of a field, such as "pad" for "pad_token" with the suffix "_token"; "" if none.
std::string role_of(const std::string& name, const char* suffix) {
  for (const char* role : roles)
    if (name == std::string(role) + suffix) return role;
  return "";
}

}  // namespace

int tokenizer_field(lua_State* L) {
  std::string name = check_text(L, 2, "Tokenizer: the name of a field");
  Reading held(L);
  const Tokenizer& tokenizer = held.tokenizer();
  auto push_optional = [&](const auto& value, auto push) {
    if (value)
      push(L, *value);
    else
      lua_pushnil(L);
    return 1;
  };
  if (std::string role = role_of(name, "_token"); !role.empty())
    return push_optional(tokenizer.special_token(role), push_text);
  if (std::string role = role_of(name, "_token_id"); !role.empty())
    return push_optional(tokenizer.special_token_id(role), push_integer);
  if (name == "vocab_size")
    return push_optional(std::optional(tokenizer.vocab_size()), push_integer);
  if (name == "model_max_length") return push_optional(tokenizer.model_max_length(), push_integer);
  if (name == "padding_side" || name == "truncation_side") {
    Side side = name == "padding_side" ? tokenizer.padding_side() : tokenizer.truncation_side();
    lua_pushstring(L, side == Side::left ? "left" : "right");
    return 1;
  }
  if (name == "additional_special_tokens") {
    push_list(L, tokenizer.additional_special_tokens(), push_text);
    return 1;
  }
  if (name == "chat_template") {
    const std::string& text = tokenizer.chat_template();
    return push_optional(text.empty() ? std::nullopt : std::optional(text), push_text);
  }
  fail("a Tokenizer has no '", name, "'");
}

int set_tokenizer_field(lua_State* L) {
  std::string name = check_text(L, 2, "Tokenizer: the name of a field");
  Writing held(L);
  Tokenizer& tokenizer = held.tokenizer();
  if (std::string role = role_of(name, "_token"); !role.empty()) {
    tokenizer.set_special_token(role, check_text(L, 3, "Tokenizer: " + name));
  } else if (name == "chat_template") {
    tokenizer.set_chat_template(check_text(L, 3, "Tokenizer: chat_template"));
  } else if (name == "additional_special_tokens") {
    tokenizer.set_additional_special_tokens(
        check_texts(L, 3, "Tokenizer: additional_special_tokens"));
  } else if (name == "padding_side" || name == "truncation_side") {
    std::string what = "Tokenizer: " + name;
    Side side = check_side(what, check_text(L, 3, what));
    if (name == "padding_side")
      tokenizer.set_padding_side(side);
    else
      tokenizer.set_truncation_side(side);
  } else {
    fail("a Tokenizer's '", name,
         "' cannot be set; special tokens such as pad_token, chat_template, padding_side and "
         "truncation_side can");
  }
  return 0;
}

int count_tokens(lua_State* L) {
  push_integer(L, Reading(L).tokenizer().size());
  return 1;
}

}  // namespace redco::lua
