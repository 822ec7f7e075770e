// Grammars of tokens, for the Lua files of this library.
#include "grammar.h"

#include "json_values.h"
#include "lua_tokenizer.h"
#include "state/object.h"
#include "state/tensor.h"

#include <redco/detail/token_grammar.h>

#include <memory>
#include <utility>
#include <vector>

namespace redco::lua {

namespace {

struct LuaTokenTexts {
  static constexpr const char* lua_name = "TokenTexts";
  std::shared_ptr<const TokenTexts> texts;
};

struct LuaTokenGrammar : TokenGrammar {
  static constexpr const char* lua_name = "TokenGrammar";
  using TokenGrammar::TokenGrammar;
};

int token_texts(lua_State* L) {
  auto texts = std::make_shared<TokenTexts>(Reading(L).tokenizer());
  push_object(L, std::make_shared<LuaTokenTexts>(LuaTokenTexts{std::move(texts)}));
  return 1;
}

int bytes_of(lua_State* L) {
  const auto& texts = check_object<LuaTokenTexts>(L, 1, "TokenTexts")->texts;
  const int64_t id = check_integer(L, 2, "TokenTexts:bytes: id");
  push_text(L, id >= 0 && id < int64_t(texts->by_id.size()) ? texts->by_id[size_t(id)] : "");
  return 1;
}

int token_grammar(lua_State* L) {
  auto texts = check_object<LuaTokenTexts>(L, 2, "token_grammar")->texts;
  push_object(L, std::make_shared<LuaTokenGrammar>(luaL_checkstring(L, 1), std::move(texts),
                                                   check_json(L, 3, "the parts")));
  return 1;
}

int after(lua_State* L) {
  auto object = check_object<LuaTokenGrammar>(L, 1, "TokenGrammar");
  std::vector<int64_t> tokens(lua_objlen(L, 2));
  for (size_t i = 0; i < tokens.size(); ++i) {
    lua_rawgeti(L, 2, int(i) + 1);
    tokens[i] = check_integer(L, -1, "TokenGrammar:after: token");
    lua_pop(L, 1);
  }
  auto next = object->after(tokens, check_integer(L, 3, "TokenGrammar:after: vocab_size"));
  if (!next) return 0;
  push_tensor(L, std::move(next->is_allowed));
  lua_pushboolean(L, next->has_any);
  lua_pushboolean(L, next->is_complete);
  return 3;
}

}  // namespace

void add_grammar(lua_State* L) {
  make_object_type<LuaTokenTexts>(
      L,
      "TokenTexts {}\n"
      "The bytes of the tokens of a tokenizer.",
      {{"bytes", bytes_of, "bytes(self, id) -> string\nReturns the bytes of a token, or \"\"."}});
  make_object_type<LuaTokenGrammar>(
      L,
      "TokenGrammar {}\n"
      "Says which tokens may follow others.",
      {{"after", after,
        "after(self, tokens: list, vocab_size) -> Tensor, boolean, boolean\n"
        "Returns which tokens may follow, whether any may, and whether the text may end; nothing "
        "if the tokens do not fit."}});
  const std::pair<const char*, lua_CFunction> functions[] = {{"token_texts", token_texts},
                                                             {"token_grammar", token_grammar}};
  for (auto [name, function] : functions) {
    lua_pushcfunction(L, function);
    lua_setfield(L, -2, name);
  }
}

}  // namespace redco::lua
