#pragma once

#include <redco/tree.h>

#include <lua.hpp>

namespace redco::lua {

/// Any Lua value as a tree for a reader: what `check_tree` refuses - functions, objects, tables of
/// mixed keys, more than 20 levels - is there as `tostring` says it. Sharded tensors are brought
/// together: all processes call it alike.
Tree plain_tree(lua_State* L, int index);

}  // namespace redco::lua
