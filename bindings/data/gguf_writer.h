#pragma once

#include <lua.hpp>

namespace redco::lua {

/// Adds gguf_writer to the table on top of the stack.
void add_gguf_writer(lua_State* L);

}  // namespace redco::lua
