#pragma once

#include <lua.hpp>

namespace redco::lua {

/// Sets the decoders of files in the table `redco.native` on top of the stack.
void add_decoders(lua_State* L);

}  // namespace redco::lua
