#pragma once

#include <lua.hpp>

namespace redco::lua {

/// Pushes a table with find, match, gmatch and gsub of Lua's library `string`, which count steps as
/// they search. LuaJIT's own functions cannot be interrupted, and a pattern may take years.
void push_counted_patterns(lua_State* L);

}  // namespace redco::lua
