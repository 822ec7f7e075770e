#pragma once

#include <lua.hpp>

namespace redco::lua {

/// Makes every module of the Lua surface known to `require`: those in C++ and, from their sources
/// inside the library, those in Lua.
void open_modules(lua_State* L);

/// From here on a global that does not exist is an error, when read and when written.
void forbid_undeclared_globals(lua_State* L);

/// Gives the scripts that are loaded from here on the globals of a restricted engine, as
/// lua/redco/restricted.lua lists them. The library's own Lua files keep all.
void restrict_globals(lua_State* L);

/// A Lua file that the library carries: `name` as for `require`, and its text.
struct EmbeddedFile {
  const char* name;
  const char* path;
  const char* text;
};
extern const EmbeddedFile embedded_files[];
extern const int n_embedded_files;

}  // namespace redco::lua
