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

/// Lets the collector work for `bytes` of new tensor memory.
void count_tensor_bytes(lua_State* L, int64_t bytes);

/// Runs `function`; when memory is short, collects all garbage and runs it once more.
template <class Function>
auto with_memory_retry(lua_State* L, Function function);

/// True for the error of a device or host that is out of memory.
bool is_out_of_memory(const std::exception& error);

template <class Function>
auto with_memory_retry(lua_State* L, Function function) {
  try {
    return function();
  } catch (const std::exception& error) {
    if (!is_out_of_memory(error)) throw;
  }
  lua_gc(L, LUA_GCCOLLECT, 0);
  return function();
}

}  // namespace redco::lua
