#pragma once

#include "arguments.h"

#include <redco/sharding.h>
#include <redco/sharding_rules.h>

#include <lua.hpp>
#include <memory>
#include <string>
#include <vector>

namespace redco::lua {

/// Adds shard, placement and the rest to the table of Tensor's methods on top of the stack.
void add_sharding_methods(lua_State* L);
/// Adds redco.shard, redco.parameter and redco.sharding_counters to the table on top of the stack.
void add_sharding(lua_State* L);

/// The mesh of the newest Deployer of this state, or null once that is gone.
std::shared_ptr<const Mesh> current_mesh(lua_State* L);

/// A list of `{pattern, placement}`; `what` names it in errors.
std::vector<ShardingRule> check_sharding_rules(lua_State* L, int index, const std::string& what);
/// The argument `params_sharding_rules`; none where it is missing.
std::vector<ShardingRule> check_sharding_rules(NamedArguments& args);
/// The decisions as such a list, each with its `reason`; as a text it is the table of them.
void push_decisions(lua_State* L, const std::vector<ShardingDecision>& decisions);

/// What a function that reads elements can read: the tensor itself, or the whole that this process
/// holds of a sharded one. An error, naming `function`, where it holds a part: what only one
/// process calls must not wait for the others.
at::Tensor readable(const at::Tensor& tensor, const char* function);

}  // namespace redco::lua
