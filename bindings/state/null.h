// redco.null: a null in a list of data.

#pragma once

#include <lua.hpp>

namespace redco::lua {

/// `redco.null` keeps the place of a null in a list, where nil would end the list. It is the light
/// userdata of the null pointer, as cjson.null, and equal in all states. check_tree converts it to
/// none, and push_tree a none in a list to it; elsewhere none is nil.
inline void push_null(lua_State* L) { lua_pushlightuserdata(L, nullptr); }

inline bool is_null(lua_State* L, int index) {
  return lua_islightuserdata(L, index) && lua_touserdata(L, index) == nullptr;
}

}  // namespace redco::lua
