#pragma once

#include <redco/json.h>

#include <lua.hpp>

namespace redco::lua {

/// Pushes JSON as a Lua value. The table of an object has a metatable that keeps the order of its
/// keys and which of them are null; new keys come last. A null in a list is `redco.null`. An empty
/// list has a metatable too, as have tables with real numbers that are whole, such as 2.0: these
/// keys stay real. A plain table stands for an object with its keys sorted by bytes.
void push_json(lua_State* L, const Json& value);

/// Converts a Lua value to JSON. Errors begin with `what` and name the path of a value that cannot
/// be converted.
Json check_json(lua_State* L, int index, const char* what);

}  // namespace redco::lua
