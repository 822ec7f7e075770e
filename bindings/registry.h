#pragma once

#include <initializer_list>
#include <lua.hpp>
#include <string>

namespace redco::lua {

/// A function of the Lua surface that is no ATen operator. `text` starts with the call and its
/// results, `item(self) -> number`; what follows says what it does, its arguments, and its errors.
/// `help`, the editor stubs and the reference read it: lua/redco/reference/signature.lua has the
/// form.
struct Function {
  const char* name;
  lua_CFunction function;
  const char* text;
};

/// Sets each function in the table on top of the stack and keeps its text under
/// `prefix` + name ("torch." or "Tensor:").
void register_functions(lua_State* L, const std::string& prefix,
                        std::initializer_list<Function> functions);

/// Keeps the text of the value on top of the stack, a function, a module, the methods of a class,
/// or nil where there is no value yet; it stays there.
void register_value(lua_State* L, const std::string& full_name, const std::string& text);

/// The module `redco.registry`, by which Lua files define their functions with texts:
/// `define(full_name, text, value) -> value`, `text(name_or_value)`, `names()`.
int open_registry(lua_State* L);

}  // namespace redco::lua
