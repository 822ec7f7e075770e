// Tensors and generators as Lua values.

#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <lua.hpp>

namespace redco::lua {

/// Pushes a tensor; an undefined one becomes nil. `fresh_bytes` is the memory allocated for it (0
/// for a view). The collector works in proportion to these bytes, which LuaJIT does not see.
void push_tensor(lua_State* L, at::Tensor tensor, int64_t fresh_bytes);
void push_tensor(lua_State* L, at::Tensor tensor);

/// Returns the tensor at `index`, or null if the value is something else.
at::Tensor* test_tensor(lua_State* L, int index);

/// Returns the tensor at `index`. Raises an error that names the argument if it is something else.
at::Tensor& check_tensor(lua_State* L, int index);

void push_generator(lua_State* L, at::Generator generator);
at::Generator* test_generator(lua_State* L, int index);

}  // namespace redco::lua
