#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <exception>
#include <lua.hpp>

namespace redco::lua {

/// Makes the collector work for `bytes` of new tensor memory on `device`, which LuaJIT doesn't see.
/// Memory of the CPU and of GPUs counts; other devices, "meta" among them, have none.
void count_tensor_bytes(lua_State* L, c10::Device device, int64_t bytes);

/// Frees all garbage if the GPU is more than half full and 1 % of its memory was given out since
/// the last time. To be called before a backward pass, in which a failed allocation ends the run:
/// nothing can be repeated there.
void collect_before_backward(lua_State* L);

/// True for the error of a device or host that is out of memory.
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
