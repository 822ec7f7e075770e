// The Lua class redco.Tokenizer.

#pragma once

#include <redco/tokenizer.h>

#include <lua.hpp>

namespace redco::lua {

void push_tokenizer(lua_State* L, Tokenizer tokenizer);

/// Adds redco.Tokenizer to the table on top of the stack.
void add_tokenizer(lua_State* L);

}  // namespace redco::lua
