// Sharding functions and rules in Lua.

#pragma once

#include "state/arguments.h"

#include <redco/sharding.h>
#include <redco/sharding_rules.h>

#include <lua.hpp>
#include <memory>
#include <string>
#include <vector>

namespace redco::lua {

/// Adds placement, full, to_local and is_sharded to the table of Tensor's methods on top of the
/// stack.
void add_sharding_methods(lua_State* L);
/// Adds redco.shard, redco.parameter and redco.sharding_counters to the table on top of the stack.
void add_sharding(lua_State* L);

/// Returns the mesh of the newest Deployer of this state, or null if there was none.
std::shared_ptr<const Mesh> current_mesh(lua_State* L);

/// Reads a list of `{pattern, placement}`; `what` names it in errors.
std::vector<ShardingRule> check_sharding_rules(lua_State* L, int index, const std::string& what);
/// Reads the argument `params_sharding_rules`; returns no rules if it is missing.
std::vector<ShardingRule> check_sharding_rules(NamedArguments& args);
/// Pushes the decisions as such a list, each with its `reason`. `tostring` formats it as a table.
void push_decisions(lua_State* L, const std::vector<ShardingDecision>& decisions);

/// Returns a tensor with readable elements: the tensor itself, or the local tensor of a sharded one
/// if that is whole. Raises an error that names `function` if it is a part, because a function that
/// only one process calls must not wait for the others.
at::Tensor readable(const at::Tensor& tensor, const char* function);

}  // namespace redco::lua
