#pragma once

#include <redco/json.h>

#include <lua.hpp>

namespace redco::lua {

/// Pushes JSON as a Lua value. The table of an object has a metatable that remembers the order of
/// its keys and which are null; new keys come last. The table of a list that is empty, or has
/// nulls, remembers that too. A plain table stands for an object whose keys are sorted by their
/// bytes.
void push_json(lua_State* L, const Json& value);

/// The inverse. Errors begin with `what` and name the path of a value that is not JSON.
Json check_json(lua_State* L, int index, const char* what);

/// Adds to the table on top of the stack: `ordered_table() -> table`, empty;
/// `ordered_keys(table) -> list of strings`; `ordered_null(table, key)`, a key that is null;
/// `ordered_newindex`, the metamethod.
void add_ordered_tables(lua_State* L);

}  // namespace redco::lua
