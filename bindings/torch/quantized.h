#pragma once

struct lua_State;

namespace redco::lua {

/// Adds the functions of quantized weights to the table on top of the stack, for this library's Lua
/// files: quantize(tensor, type) -> blocks, dequantize(blocks, type, dtype = "float32") -> tensor,
/// quantized_linear(x, blocks, type, bias = nil) -> y, and block_types, a list of
/// {name, size, bytes}.
void add_quantized_functions(lua_State* L);

}  // namespace redco::lua
