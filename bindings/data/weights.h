#pragma once

#include <lua.hpp>

namespace redco::lua {

/// Adds open_weights, save_weights and open_gguf to the table on top of the stack.
void add_weights(lua_State* L);

}  // namespace redco::lua
