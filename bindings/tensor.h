#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <lua.hpp>

namespace redco::lua {

/// Pushes a tensor; an undefined one is nil. `fresh_bytes` is the memory that was made for it (0
/// for a view): the collector works in proportion to these, since LuaJIT does not see them.
void push_tensor(lua_State* L, at::Tensor tensor, int64_t fresh_bytes);
void push_tensor(lua_State* L, at::Tensor tensor);

/// The tensor at `index`, or null when the value is something else.
at::Tensor* test_tensor(lua_State* L, int index);

/// The tensor at `index`; an error naming the argument when the value is something else.
at::Tensor& check_tensor(lua_State* L, int index);

void push_generator(lua_State* L, at::Generator generator);
at::Generator* test_generator(lua_State* L, int index);

}  // namespace redco::lua
