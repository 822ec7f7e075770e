#pragma once

#include <lua.hpp>

namespace redco::lua {

/// Adds `lower_case` and `general_category` to `redco.native`.
void add_unicode(lua_State* L);

}  // namespace redco::lua
