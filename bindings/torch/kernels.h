#pragma once

struct lua_State;

namespace redco::lua {

/// Adds the kernels of the engine to the table on top of the stack, `redco.native`, for this
/// library's Lua files. `block_types` there lists the types of quantized numbers:
/// {name, size, bytes}.
void add_kernels(lua_State* L);

}  // namespace redco::lua
