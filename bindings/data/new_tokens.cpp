// Tokenizer:add_tokens and Tokenizer:add_special_tokens.
#include "lua_tokenizer.h"
#include "state/arguments.h"

#include <redco/error.h>

#include <optional>

namespace redco::lua {

std::string check_text(lua_State* L, int index, const std::string& what) {
  require(lua_type(L, index) == LUA_TSTRING, what, ": expected a string, got ",
          described(L, index));
  size_t size = 0;
  const char* bytes = lua_tolstring(L, index, &size);
  return {bytes, size};
}

std::vector<std::string> check_texts(lua_State* L, int index, const std::string& what) {
  if (lua_type(L, index) == LUA_TSTRING) return {check_text(L, index, what)};
  require(lua_istable(L, index), what, ": expected a string or a list of strings, got ",
          described(L, index));
  std::vector<std::string> texts;
  for (int i = 1; i <= int(lua_objlen(L, index)); ++i) {
    lua_rawgeti(L, index, i);
    texts.push_back(check_text(L, lua_gettop(L), what + ": entry " + std::to_string(i)));
    lua_pop(L, 1);
  }
  return texts;
}

namespace {

constexpr const char* more = "additional_special_tokens";

// A token as a string, or as a table with its text as `content`.
NewToken check_token(lua_State* L, int index, const std::string& what, bool special) {
  if (lua_type(L, index) == LUA_TSTRING)
    return {.content = check_text(L, index, what), .special = special};
  require(lua_istable(L, index), what, ": expected a string, or a table with content, got ",
          described(L, index));
  NamedArguments args(L, index, what);
  NewToken token{.content = args.required<std::string>("content")};
  token.special = args.get<bool>("special", false) || special;
  token.single_word = args.get<bool>("single_word", false);
  token.lstrip = args.get<bool>("lstrip", false);
  token.rstrip = args.get<bool>("rstrip", false);
  token.normalized = args.optional<bool>("normalized");
  args.finish();
  return token;
}

// A list of tokens, or one string.
std::vector<NewToken> check_tokens(lua_State* L, int index, const std::string& what, bool special) {
  if (lua_type(L, index) == LUA_TSTRING) return {check_token(L, index, what, special)};
  require(lua_istable(L, index), what, ": expected a string or a list, got ", described(L, index));
  std::vector<NewToken> tokens;
  for (int i = 1; i <= int(lua_objlen(L, index)); ++i) {
    lua_rawgeti(L, index, i);
    tokens.push_back(check_token(L, lua_gettop(L), what + ": entry " + std::to_string(i), special));
    lua_pop(L, 1);
  }
  return tokens;
}

}  // namespace

const char* const add_tokens_text =
    R"text(add_tokens(self, new_tokens: string or list, {special_tokens = false}) -> integer
Adds tokens to the vocabulary, and returns how many are new. A new token gets the next free id. The
entries of the list are strings, or tables {content, single_word, lstrip, rstrip, normalized,
special} with the text and how it is found. Decoding can leave out special tokens, and their text is
not normalized. Afterwards give the model a row for each token:
`model.resize_token_embeddings(#tok)`. `save_pretrained` saves the tokens.)text";

int add_tokens(lua_State* L) {
  const std::string what = "Tokenizer:add_tokens";
  Writing held(L);
  bool special = false;
  if (!lua_isnoneornil(L, 3)) {
    NamedArguments args(L, 3, what);
    special = args.get<bool>("special_tokens", false);
    args.finish();
  }
  push_integer(L, held.tokenizer().add_tokens(check_tokens(L, 2, what + ": new_tokens", special)));
  return 1;
}

const char* const add_special_tokens_text =
    R"text(add_special_tokens(self, tokens: table, {replace_additional_special_tokens = true}) -> integer
Gives tokens roles and adds those that the vocabulary lacks. Returns how many are new. `tokens` has
the keys bos_token, eos_token, unk_token, sep_token, pad_token, cls_token and mask_token, each with a
string or a table as in `add_tokens`, and additional_special_tokens with a list of them. That list
replaces the former one, unless replace_additional_special_tokens is false. New ids are given in the
order of these keys. Afterwards call `model.resize_token_embeddings(#tok)`.)text";

int add_special_tokens(lua_State* L) {
  const std::string what = "Tokenizer:add_special_tokens";
  Writing held(L);
  Tokenizer& tokenizer = held.tokenizer();
  bool replaces = true;
  if (!lua_isnoneornil(L, 3)) {
    NamedArguments args(L, 3, what);
    replaces = args.get<bool>("replace_additional_special_tokens", true);
    args.finish();
  }
  std::vector<NewToken> tokens, listed;
  std::vector<std::pair<std::string, std::string>> named;
  lua_settop(L, 2);
  NamedArguments args(L, 2, what);
  for (const char* role : {"bos", "eos", "unk", "sep", "pad", "cls", "mask"}) {
    std::string key = std::string(role) + "_token";
    if (!args.has(key.c_str())) continue;
    args.push(key.c_str());
    tokens.push_back(check_token(L, lua_gettop(L), what + ": " + key, true));
    lua_pop(L, 1);
    named.emplace_back(role, tokens.back().content);
  }
  bool has_more = args.has(more);
  if (has_more) {
    args.push(more);
    listed = check_tokens(L, lua_gettop(L), what + ": " + more, true);
    lua_pop(L, 1);
  }
  args.finish();
  tokens.insert(tokens.end(), listed.begin(), listed.end());
  int64_t n = tokenizer.add_tokens(tokens);
  for (const auto& [role, content] : named) tokenizer.set_special_token(role, content);
  if (has_more) {
    std::vector<std::string> all;
    if (!replaces) all = tokenizer.additional_special_tokens();
    for (const NewToken& token : listed)
      if (std::find(all.begin(), all.end(), token.content) == all.end())
        all.push_back(token.content);
    tokenizer.set_additional_special_tokens(std::move(all));
  }
  push_integer(L, n);
  return 1;
}

}  // namespace redco::lua
