// Converts any Lua value to a tree for human readers.

#include "plain_tree.h"

#include "context.h"
#include "null.h"
#include "tensor.h"
#include "values.h"

#include <redco/sharding.h>

namespace redco::lua {

namespace {

// Returns `tostring` of the value on top of the stack.
std::string text_of_top(lua_State* L) {
  lua_getglobal(L, "tostring");
  lua_pushvalue(L, -2);
  call(L, 1, 1);
  size_t length = 0;
  const char* bytes = lua_tolstring(L, -1, &length);
  std::string text(bytes, length);
  lua_pop(L, 1);
  return text;
}

Tree plain_top(lua_State* L, int depth) {
  constexpr int most_levels = 20;  // a table may contain itself
  if (at::Tensor* tensor = test_tensor(L, -1)) return full(*tensor);
  if (lua_type(L, -1) == LUA_TSTRING || lua_type(L, -1) == LUA_TNUMBER ||
      lua_type(L, -1) == LUA_TBOOLEAN || lua_isnil(L, -1) || is_null(L, -1))
    return check_tree(L, lua_gettop(L));
  if (!lua_istable(L, -1) || depth == most_levels) return text_of_top(L);
  luaL_checkstack(L, 4, "a deeply nested table");
  int table = lua_gettop(L);
  size_t n_keys = 0, length = lua_objlen(L, table);
  for (lua_pushnil(L); lua_next(L, table); lua_pop(L, 1)) ++n_keys;
  if (length > 0 && n_keys == length) {
    Tree::List list;
    for (size_t i = 1; i <= length; ++i) {
      lua_rawgeti(L, table, int(i));
      list.push_back(plain_top(L, depth + 1));
      lua_pop(L, 1);
    }
    return list;
  }
  Tree::Dict dict;
  for (lua_pushnil(L); lua_next(L, table); lua_pop(L, 1)) {
    lua_pushvalue(L, -2);
    std::string key = text_of_top(L);
    lua_pop(L, 1);
    dict.emplace(std::move(key), plain_top(L, depth + 1));
  }
  return dict;
}

}  // namespace

Tree plain_tree(lua_State* L, int index) {
  return balanced(L, [&] {
    lua_pushvalue(L, index);
    return plain_top(L, 0);
  });
}

}  // namespace redco::lua
