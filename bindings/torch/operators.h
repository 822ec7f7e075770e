// ATen operators as Lua functions.

#pragma once

#include "overload.h"

#include <lua.hpp>
#include <string>
#include <vector>

namespace redco::lua {

/// All overloads of one ATen operator.
struct OverloadSet {
  std::string name;
  std::vector<Overload> overloads;
  bool is_factory = false;  // whether it accepts `requires_grad`
};

/// Returns the operator called `name`, or null. Its schemas are read at the first call.
const OverloadSet* find_operator(const std::string& name);

/// The names of all operators, sorted.
const std::vector<std::string>& operator_names();

/// Pushes the operator as a function `torch.NAME(...)`, or as a method `t:NAME(...)`. Returns false
/// and pushes nothing if there is no such operator.
bool push_operator(lua_State* L, const std::string& name, bool is_method);

/// Returns the operator of a function that `push_operator` pushed, or null. Sets `is_method`.
const OverloadSet* test_operator(lua_State* L, int index, bool& is_method);

/// Calls `op` with the arguments on the stack; pushes its results and returns how many.
int call_operator(lua_State* L, const OverloadSet& op, bool is_method);

}  // namespace redco::lua
