#pragma once

#include "confinement.h"

#include <redco/host_type.h>

#include <lua.hpp>
#include <memory>
#include <string>
#include <typeindex>

namespace redco::lua {

/// Makes the Lua type of a class of the program; `name` is not yet taken.
void make_host_type(lua_State* L, const std::string& name, std::type_index type);

/// Adds to it. A constructor is the global with the type's name.
void add_host_member(lua_State* L, std::type_index type, host::Member kind, const std::string& name,
                     host::Function function);

/// Pushes an object of a class that the state has a type for; null is nil.
void push_host_object(lua_State* L, std::shared_ptr<void> object, std::type_index type);

/// Calls what belongs to the program: what it throws is a std::exception from here on, or an error
/// of Lua's own.
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
