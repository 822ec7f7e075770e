// What redco.data decodes files with.
#include <redco/image.h>
#include <redco/json.h>

#include "decoders.h"
#include "tensor.h"
#include "values.h"

#include <string>
#include <string_view>

namespace redco::lua {

namespace {

std::string_view check_bytes(lua_State* L, int index) {
  size_t size = 0;
  const char* bytes = luaL_checklstring(L, index, &size);
  return {bytes, size};
}

// decode_json(name, text) and decode_image(name, bytes): `name` is that of the file, for errors.
int json(lua_State* L) {
  push_tree(L, decode_json(luaL_checkstring(L, 1), check_bytes(L, 2)));
  return 1;
}

int image(lua_State* L) {
  push_tensor(L, decode_image(luaL_checkstring(L, 1), check_bytes(L, 2)));
  return 1;
}

}  // namespace

void add_decoders(lua_State* L) {
  lua_pushcfunction(L, json);
  lua_setfield(L, -2, "decode_json");
  lua_pushcfunction(L, image);
  lua_setfield(L, -2, "decode_image");
}

}  // namespace redco::lua
