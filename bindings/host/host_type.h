// Registered C++ classes as Lua types.

#pragma once

#include "state/confinement.h"

#include <redco/host_type.h>

#include <lua.hpp>
#include <memory>
#include <string>
#include <typeindex>

namespace redco::lua {

/// Creates the Lua type of a registered class; `name` must be unused.
void make_host_type(lua_State* L, const std::string& name, std::type_index type);

/// Adds a member to a type. A constructor becomes the global with the type's name.
void add_host_member(lua_State* L, std::type_index type, host::Member kind, const std::string& name,
                     host::Function function);

/// Sets the global `name` to a function of the program.
void add_host_function(lua_State* L, const std::string& name, host::Function function);

/// Pushes an object of a registered class; null becomes nil.
void push_host_object(lua_State* L, std::shared_ptr<void> object, std::type_index type);

/// Calls a function of the program. Converts exceptions of other types to std::exception; Lua's own
/// errors propagate.
template <class Body>
void call_program(const std::string& function, Body body);

[[noreturn]] void rethrow_known(const std::string& function);

template <class Body>
void call_program(const std::string& function, Body body) {
  Confinement::Outside outside;
  try {
    body();
  } catch (...) {
    rethrow_known(function);
  }
}

}  // namespace redco::lua
