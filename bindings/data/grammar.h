// Grammars of tokens, for the Lua files of this library.

#pragma once

#include <lua.hpp>

namespace redco::lua {

/// Adds `token_texts` and `token_grammar` to the table on top of the stack.
void add_grammar(lua_State* L);

}  // namespace redco::lua
