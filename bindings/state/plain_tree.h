#pragma once

#include <redco/tree.h>

#include <lua.hpp>

namespace redco::lua {

/// Converts any Lua value to a tree for human readers. Values that `check_tree` refuses (functions,
/// objects, tables of mixed keys, more than 20 levels) become their `tostring`. Sharded tensors are
/// gathered, so all processes must call it alike.
Tree plain_tree(lua_State* L, int index);

}  // namespace redco::lua
