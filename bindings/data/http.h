#pragma once

#include <lua.hpp>

namespace redco::lua {

/// Adds `http_server`, `stop_listener` and `is_same_secret` to `redco.native`, for redco.serve.
void add_http(lua_State* L);

}  // namespace redco::lua
