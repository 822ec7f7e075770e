// Drives Lua's garbage collector by the memory of tensors.

#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <exception>
#include <lua.hpp>

namespace redco::lua {

/// Advances the Lua garbage collector for `bytes` of new tensor memory on `device`, which LuaJIT
/// does not see. Counts memory of the CPU and of GPUs; other devices, such as "meta", have none.
void count_tensor_bytes(lua_State* L, c10::Device device, int64_t bytes);

/// Frees all garbage if 1 % of the GPU's memory was allocated since the last call, unless the Lua
/// heap is large and memory is free. Call it before a batch of training: the peak is then that of
/// any other step, and of a plan.
void collect_before_batch(lua_State* L);

/// The same for 1 % since all garbage was freed, if the GPU is also more than half full. Call it
/// before a backward pass: an allocation that fails there ends the run, since a backward pass
/// cannot be repeated.
void collect_before_backward(lua_State* L);

/// Whether an error means that a device or the host is out of memory.
bool is_out_of_memory(const std::exception& error);

/// Runs `function`. If memory is short, frees all garbage and runs it once more.
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
