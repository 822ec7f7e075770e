#pragma once

#include <redco/json.h>

#include <lua.hpp>

namespace redco::lua {

/// JSON as Lua values. A table that was an object has a metatable that remembers the order of its
/// keys and which of them are null; new keys come last. A plain table is an object whose keys are
/// sorted by their bytes. A list that is empty, or has nulls, remembers that as well.
void push_json(lua_State* L, const Json& value);

/// The inverse. `what` begins errors, which name the path of what is no JSON.
Json check_json(lua_State* L, int index, const char* what);

/// Sets in the table on top of the stack: `ordered_table() -> table`, empty;
/// `ordered_keys(table) -> list of strings`; `ordered_null(table, key)`, a key that is null;
/// `ordered_newindex`, the metamethod.
void add_ordered_tables(lua_State* L);

}  // namespace redco::lua
