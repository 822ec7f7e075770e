#pragma once

#include <lua.hpp>
#include <string>

namespace redco::lua {

/// Pushes on `to` a copy of the value at `index` of `from`, another state; no other thread may use
/// either meanwhile, and errors of `to` must be caught (`protect`).
///
/// Numbers, strings, booleans and nil are copied; tables with all that is in them, metatables
/// included, each once however often it is met; Lua functions as their bytecode, with their
/// upvalues, of which those that functions share stay shared. Tensors and objects that are
/// thread-safe are shared. Modules that `require` has loaded, and functions and tables found in
/// them, are those of the same names of the other state. Anything else is an Error that begins with
/// `what` and the way to it: "what: upvalue 'cache' -> field 'x' is a coroutine".
void copy_value(lua_State* from, int index, lua_State* to, const std::string& what);

}  // namespace redco::lua
