// The registry of help texts.

#include "registry.h"

#include "context.h"

#include <redco/error.h>

#include <algorithm>
#include <vector>

namespace redco::lua {

namespace {

// The slot holds one table: full name -> text, and value -> full name.
void push_texts(lua_State* L) {
  lua_rawgeti(L, LUA_REGISTRYINDEX, slot_texts);
  if (!lua_isnil(L, -1)) return;
  lua_pop(L, 1);
  lua_newtable(L);
  lua_newtable(L);
  lua_pushliteral(L, "k");  // weak keys: functions of one object are collected with it
  lua_setfield(L, -2, "__mode");
  lua_setmetatable(L, -2);
  lua_pushvalue(L, -1);
  lua_rawseti(L, LUA_REGISTRYINDEX, slot_texts);
}

int define(lua_State* L) {
  const char* name = luaL_checkstring(L, 1);
  const char* text = luaL_checkstring(L, 2);
  lua_settop(L, 3);
  register_value(L, name, text);
  return 1;
}

int text(lua_State* L) {
  luaL_checkany(L, 1);
  push_texts(L);
  lua_pushvalue(L, 1);
  lua_rawget(L, -2);
  if (lua_type(L, 1) != LUA_TSTRING && lua_isstring(L, -1)) {
    lua_pushvalue(L, -1);
    lua_rawget(L, -3);  // the text, the name below it
    lua_insert(L, -2);
    return 2;
  }
  lua_pushvalue(L, 1);
  return 2;
}

int registered_names(lua_State* L) {
  push_texts(L);
  std::vector<std::string> found;
  for (lua_pushnil(L); lua_next(L, -2); lua_pop(L, 1))
    if (lua_type(L, -2) == LUA_TSTRING) found.emplace_back(lua_tostring(L, -2));
  std::sort(found.begin(), found.end());
  lua_createtable(L, int(found.size()), 0);
  for (size_t i = 0; i < found.size(); ++i) {
    lua_pushlstring(L, found[i].data(), found[i].size());
    lua_rawseti(L, -2, int(i + 1));
  }
  return 1;
}

}  // namespace

void register_value(lua_State* L, const std::string& full_name, const std::string& text) {
  push_texts(L);
  lua_pushlstring(L, text.data(), text.size());
  lua_setfield(L, -2, full_name.c_str());
  if (!lua_isnil(L, -2)) {
    lua_pushvalue(L, -2);
    lua_rawget(L, -2);
    const char* other = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : nullptr;
    if (other != nullptr && full_name != other)
      fail(full_name, " is registered as ", other,
           " already: its help would be that of one of them");
    lua_pop(L, 1);
    lua_pushvalue(L, -2);
    lua_pushlstring(L, full_name.data(), full_name.size());
    lua_rawset(L, -3);
  }
  lua_pop(L, 1);
}

std::string registered_text(lua_State* L, const std::string& full_name) {
  push_texts(L);
  lua_getfield(L, -1, full_name.c_str());
  std::string found = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "";
  lua_pop(L, 2);
  return found;
}

void register_functions(lua_State* L, const std::string& prefix,
                        const std::vector<Function>& functions) {
  for (const Function& entry : functions) {
    lua_pushcfunction(L, entry.function);
    register_value(L, prefix + entry.name, entry.text);
    lua_setfield(L, -2, entry.name);
  }
}

int open_registry(lua_State* L) {
  lua_newtable(L);
  register_functions(
      L, "redco.registry.",
      {{"define", define,
        "define(full_name, text, value = nil) -> value\n"
        "Registers the help text of a function, class or module and returns the value. Values "
        "that are created for each object may be registered later, with the same name."},
       {"text", text,
        "text(name_or_value) -> text or nil, full_name\n"
        "Returns the help text of a registered function, by value or by full name."},
       {"names", registered_names,
        "names() -> list of strings\n"
        "Returns the full names of all registered values, sorted."}});
  return 1;
}

}  // namespace redco::lua
