#pragma once

#include <lua.hpp>

namespace redco::lua {

/// Makes all Lua modules available to `require`: the native ones, and the Lua files embedded in the
/// library.
void open_modules(lua_State* L);

/// From now on, reading or writing an undeclared global is an error.
void forbid_undeclared_globals(lua_State* L);

/// Gives scripts loaded from now on the globals of a restricted engine, listed in
/// lua/redco/restricted.lua. The library's own Lua files keep all globals.
void restrict_globals(lua_State* L);

/// A Lua file embedded in the library; `name` is its name for `require`.
struct EmbeddedFile {
  const char* name;
  const char* path;
  const char* text;
};
extern const EmbeddedFile embedded_files[];
extern const int n_embedded_files;

}  // namespace redco::lua
