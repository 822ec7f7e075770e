#pragma once

#include <lua.hpp>

namespace redco::lua {

/// `redco.options(defaults)`.
int options(lua_State* L);

}  // namespace redco::lua
