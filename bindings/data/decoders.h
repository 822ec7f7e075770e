#pragma once

#include <lua.hpp>

namespace redco::lua {

/// Adds decoders to the table `redco.native` on top of the stack: `json_decode(name, text) ->
/// value` (null is nil; objects are ordered tables), `json_encode(name, value, indent) -> text`,
/// `image_decode(name, bytes) -> Tensor`, `image_resize(image, height, width, resample,
/// pillow = 13) -> Tensor`. `name` is the file name for errors.
void add_decoders(lua_State* L);

}  // namespace redco::lua
