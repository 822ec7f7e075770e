// The functions of quantized weights in redco.native.
#include "quantized.h"

#include "state/collector.h"
#include "state/tensor.h"
#include "state/values.h"

#include <redco/quantized.h>

#include <optional>
#include <string>

namespace redco::lua {

namespace {

int quantize_tensor(lua_State* L) {
  const std::string type = luaL_checkstring(L, 2);
  std::optional<at::Tensor> importance;
  if (!lua_isnoneornil(L, 3)) importance = check_tensor(L, 3);
  push_tensor(L,
              with_memory_retry(L, [&] { return quantize(check_tensor(L, 1), type, importance); }));
  return 1;
}

int dequantize_blocks(lua_State* L) {
  const std::string type = luaL_checkstring(L, 2);
  const at::ScalarType dtype = lua_isnoneornil(L, 3) ? at::kFloat : check_dtype(L, 3);
  push_tensor(L, with_memory_retry(L, [&] { return dequantize(check_tensor(L, 1), type, dtype); }));
  return 1;
}

int linear_of_blocks(lua_State* L) {
  const std::string type = luaL_checkstring(L, 3);
  std::optional<at::Tensor> bias;
  if (!lua_isnoneornil(L, 4)) bias = check_tensor(L, 4);
  push_tensor(L, with_memory_retry(L, [&] {
                return quantized_linear(check_tensor(L, 1), check_tensor(L, 2), type, bias);
              }));
  return 1;
}

void push_types(lua_State* L) {
  lua_newtable(L);
  int i = 0;
  for (const BlockType& type : block_types()) {
    lua_newtable(L);
    lua_pushstring(L, type.name);
    lua_setfield(L, -2, "name");
    push_integer(L, type.size);
    lua_setfield(L, -2, "size");
    push_integer(L, type.bytes);
    lua_setfield(L, -2, "bytes");
    lua_rawseti(L, -2, ++i);
  }
}

}  // namespace

void add_quantized_functions(lua_State* L) {
  lua_pushcfunction(L, quantize_tensor);
  lua_setfield(L, -2, "quantize");
  lua_pushcfunction(L, dequantize_blocks);
  lua_setfield(L, -2, "dequantize");
  lua_pushcfunction(L, linear_of_blocks);
  lua_setfield(L, -2, "quantized_linear");
  push_types(L);
  lua_setfield(L, -2, "block_types");
}

}  // namespace redco::lua
