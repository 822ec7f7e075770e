// The registry of help texts.

#pragma once

#include <lua.hpp>
#include <string>
#include <vector>

namespace redco::lua {

/// A Lua function of this library that is not an ATen operator. `text` starts with the signature,
/// `item(self) -> number`, followed by a description of the function, its arguments and its errors.
/// `help`, the editor stubs and the reference read it; lua/redco/reference/signature.lua describes
/// the format.
struct Function {
  const char* name;
  lua_CFunction function;
  const char* text;
};

/// Sets each function in the table on top of the stack and registers its text as `prefix` + name
/// ("torch." or "Tensor:").
void register_functions(lua_State* L, const std::string& prefix,
                        const std::vector<Function>& functions);

/// Registers the text of the value on top of the stack, which stays there: a function, a module,
/// the methods of a class, or nil if there is no value yet. Throws Error if the value has another
/// name already.
void register_value(lua_State* L, const std::string& full_name, const std::string& text);

/// The help text of a full name, "redco.optim.adamw"; empty if there is none.
std::string registered_text(lua_State* L, const std::string& full_name);

/// The module `redco.registry`, with which Lua files register the texts of their functions:
/// `define(full_name, text, value) -> value`, `text(name_or_value)`, `names()`.
int open_registry(lua_State* L);

}  // namespace redco::lua
