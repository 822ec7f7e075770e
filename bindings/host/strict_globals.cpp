// Undeclared globals as errors.

#include "modules.h"
#include "state/context.h"
#include "state/habits.h"

#include <redco/error.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

namespace redco::lua {

namespace {

// Returns the names that the calling function can use: globals, its local variables, upvalues.
std::vector<std::string> names_in_scope(lua_State* L) {
  std::vector<std::string> names;
  for (lua_pushnil(L); lua_next(L, LUA_GLOBALSINDEX) != 0; lua_pop(L, 1))
    if (lua_type(L, -2) == LUA_TSTRING) names.push_back(lua_tostring(L, -2));
  lua_Debug caller;
  if (!lua_getstack(L, 1, &caller)) return names;
  const char* name;
  for (int i = 1; (name = lua_getlocal(L, &caller, i)) != nullptr; ++i, lua_pop(L, 1))
    names.push_back(name);
  lua_getinfo(L, "f", &caller);
  for (int i = 1; (name = lua_getupvalue(L, -1, i)) != nullptr; ++i, lua_pop(L, 1))
    names.push_back(name);
  lua_pop(L, 1);
  return names;
}

// Globals of Lua that restricted engines lack.
constexpr std::string_view unrestricted[] = {
    "collectgarbage", "debug",    "dofile",     "ffi",    "getfenv",  "io",      "jit",
    "load",           "loadfile", "loadstring", "module", "newproxy", "package", "setfenv"};

std::string on_declaration(lua_State* L) {
  // Only the program has the option.
  bool has_option = context(L).exits_process;
  return std::string("; declare it with `local`") + (has_option ? ", or run with --no-strict" : "");
}

int undeclared_read(lua_State* L) {
  std::string name = luaL_checkstring(L, 2), advice = advice_on_name(name);
  bool is_restricted = context(L).tensor_memory != nullptr;
  require(!is_restricted || std::ranges::find(unrestricted, name) == std::end(unrestricted), "'",
          name, "' is not available in a restricted engine");
  if (advice.empty()) {
    std::string near = nearest(name, names_in_scope(L));
    advice = near.empty() ? on_declaration(L) : "; did you mean '" + near + "'?";
  }
  fail("undeclared global '", name, "' is read", advice);
}

int undeclared_write(lua_State* L) {
  fail("undeclared global '", luaL_checkstring(L, 2), "' is assigned", on_declaration(L));
}

}  // namespace

void forbid_undeclared_globals(lua_State* L) {
  lua_newtable(L);
  lua_pushcfunction(L, undeclared_read);
  lua_setfield(L, -2, "__index");
  lua_pushcfunction(L, undeclared_write);
  lua_setfield(L, -2, "__newindex");
  lua_setmetatable(L, LUA_GLOBALSINDEX);
}

}  // namespace redco::lua
