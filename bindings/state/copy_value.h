#pragma once

#include <lua.hpp>
#include <string>

namespace redco::lua {

/// Copies the value at `index` of `from` to the top of `to`, another state. No other thread may use
/// either state meanwhile, and errors of `to` must be caught (`protect`).
///
/// - Numbers, strings, booleans and nil are copied.
/// - Tables are copied with their contents and metatables, each once.
/// - Lua functions are copied as bytecode with their upvalues; shared upvalues stay shared.
/// - Tensors and thread-safe objects are shared.
/// - Modules that `require` has loaded, and functions and tables in them, are replaced by those of
///   the same name in the other state.
/// - Any other value is an Error that begins with `what` and the path to the value: "what: upvalue
///   'cache' -> field 'x' is a coroutine".
void copy_value(lua_State* from, int index, lua_State* to, const std::string& what);

}  // namespace redco::lua
