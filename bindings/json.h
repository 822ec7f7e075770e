#pragma once

#include <lua.hpp>

namespace redco::lua {

/// Adds `json_decode(text, where) -> value` (null is nil) and `json_encode(value, where, indent) ->
/// text` to the table on top of the stack. Their errors begin with `where`.
void add_json(lua_State* L);

}  // namespace redco::lua
