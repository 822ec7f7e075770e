// JSON for the Lua files of this library: text to values and back.
#include "json.h"

#include "registry.h"
#include "values.h"

#include <redco/json.h>

namespace redco::lua {

namespace {

std::string where_of(lua_State* L) {
  return lua_isnoneornil(L, 2) ? "" : std::string(luaL_checkstring(L, 2)) + ": ";
}

int decode(lua_State* L) {
  size_t length = 0;
  const char* text = luaL_checklstring(L, 1, &length);
  push_tree(L, tree_from_json(where_of(L), {text, length}));
  return 1;
}

int encode(lua_State* L) {
  int indent = lua_isnoneornil(L, 3) ? -1 : static_cast<int>(luaL_checkinteger(L, 3));
  std::string text = json_from_tree(where_of(L), check_tree(L, 1), indent);
  lua_pushlstring(L, text.data(), text.size());
  return 1;
}

}  // namespace

void add_json(lua_State* L) {
  lua_pushcfunction(L, decode);
  lua_setfield(L, -2, "json_decode");
  lua_pushcfunction(L, encode);
  lua_setfield(L, -2, "json_encode");
}

}  // namespace redco::lua
