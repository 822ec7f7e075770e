// C++ objects as Lua values with methods.

#pragma once

#include "context.h"
#include "registry.h"
#include "values.h"

#include <redco/detail/article.h>
#include <redco/error.h>

#include <lua.hpp>
#include <memory>
#include <string>
#include <vector>

namespace redco::lua {

/// Pushes a C++ object as a Lua value with methods. `T::lua_name` is the name of its type,
/// "Trainer". If `T::is_thread_safe` is true, it can be shared with other states.
template <class T>
void push_object(lua_State* L, std::shared_ptr<T> object) {
  new (lua_newuserdata(L, sizeof(std::shared_ptr<T>))) std::shared_ptr<T>(std::move(object));
  luaL_getmetatable(L, T::lua_name);
  lua_setmetatable(L, -2);
}

template <class T>
std::shared_ptr<T> test_object(lua_State* L, int index) {
  if (lua_type(L, index) != LUA_TUSERDATA || !lua_getmetatable(L, index)) return nullptr;
  luaL_getmetatable(L, T::lua_name);
  bool same = lua_rawequal(L, -1, -2);
  lua_pop(L, 2);
  return same ? *static_cast<std::shared_ptr<T>*>(lua_touserdata(L, index)) : nullptr;
}

/// Returns the object at `index`. Raises an error with the name `what` if it is something else.
template <class T>
std::shared_ptr<T> check_object(lua_State* L, int index, const std::string& what) {
  auto object = test_object<T>(L, index);
  if (object == nullptr)
    fail(what, ": expected ", with_article(T::lua_name), ", got ", described(L, index),
         index == 1 ? "; methods are called with a colon" : "");
  return object;
}

/// Pushes on `to` the object at `index` of `from`. The metatable of a thread-safe type has this
/// function as `__share`.
using ShareObject = void (*)(lua_State* from, int index, lua_State* to);

/// Creates the Lua type of T with its text, its methods, and `field`, which reads other fields.
/// `tostring` of an object gives the name of its type and, if T has `described()`, its state:
/// `Trainer {step = 40}`.
template <class T>
void make_object_type(lua_State* L, const char* text, const std::vector<Function>& methods,
                      lua_CFunction field = nullptr) {
  luaL_newmetatable(L, T::lua_name);
  lua_pushstring(L, T::lua_name);
  lua_setfield(L, -2, "__name");
  lua_newtable(L);
  register_value(L, T::lua_name, text);
  register_functions(L, std::string(T::lua_name) + ":", methods);
  if (field != nullptr) {
    lua_newtable(L);
    lua_pushcfunction(L, field);
    lua_setfield(L, -2, "__index");
    lua_setmetatable(L, -2);
  }
  // Fields need the object, not the table of methods: look methods up first.
  lua_pushcclosure(
      L,
      [](lua_State* state) {
        lua_pushvalue(state, 2);
        lua_rawget(state, lua_upvalueindex(1));
        if (!lua_isnil(state, -1) || !lua_getmetatable(state, lua_upvalueindex(1))) return 1;
        lua_getfield(state, -1, "__index");
        lua_pushvalue(state, 1);
        lua_pushvalue(state, 2);
        lua_call(state, 2, 1);
        return 1;
      },
      1);
  lua_setfield(L, -2, "__index");
  lua_pushcfunction(L, [](lua_State* state) {
    static_cast<std::shared_ptr<T>*>(lua_touserdata(state, 1))->reset();
    return 0;
  });
  lua_setfield(L, -2, "__gc");
  lua_pushcfunction(L, [](lua_State* state) {
    std::string text = T::lua_name;
    if constexpr (requires(const T& object) { object.described(); }) {
      auto object = test_object<T>(state, 1);
      if (object) text += " {" + object->described() + "}";
    }
    lua_pushlstring(state, text.data(), text.size());
    return 1;
  });
  lua_setfield(L, -2, "__tostring");
  if constexpr (requires { T::is_thread_safe; }) {
    ShareObject share = [](lua_State* from, int object, lua_State* to) {
      push_object(to, test_object<T>(from, object));
    };
    lua_pushlightuserdata(L, reinterpret_cast<void*>(share));
    lua_setfield(L, -2, "__share");
  }
  lua_pop(L, 1);
}

}  // namespace redco::lua
