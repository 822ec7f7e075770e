#pragma once

#include <lua.hpp>

namespace redco::lua {

/// Adds to `redco.native` the functions with which lua/redco/hub downloads files and shares their
/// folder with other programs: `http_client`, `waiting_lock`, `digest_of_file`, `make_folders`,
/// `make_link`, `free_bytes`.
void add_hub(lua_State* L);

}  // namespace redco::lua
