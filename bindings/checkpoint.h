#pragma once

#include <ATen/core/Generator.h>

#include <lua.hpp>

namespace redco::lua {

/// `redco.checkpoint(f, ...)`: calls f(...) and keeps none of what its operators save for the
/// backward pass; there f runs again, with the random numbers of its first run.
int checkpoint(lua_State* L);

/// Tells a running checkpoint that an operator is about to draw from `generator`.
void about_to_draw(const at::Generator& generator);

}  // namespace redco::lua
