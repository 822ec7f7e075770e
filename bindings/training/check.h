// `redco-lua check`: runs a script and checks it when it begins to train.

#pragma once

#include "training_objects.h"

#include <redco/deployer.h>

#include <lua.hpp>

namespace redco::lua {

/// Whether scripts of this state are checked, not run.
bool is_checking(lua_State* L);

/// Changes the options of a checked script's Deployer: it connects, shows and writes nothing.
void set_options_of_checked(DeployerOptions& options);

/// Keeps the arguments of redco.Trainer, the table at `index`, of a checked script.
void keep_arguments(lua_State* L, int index, LuaTrainer& trainer);

/// Checks the training of a checked script, whose arguments are the table at `index`, and ends the
/// script with an error.
int check_and_end(lua_State* L, int index, const LuaTrainer& trainer);

/// Adds what redco.check needs to the table on top of the stack.
void add_check(lua_State* L);

}  // namespace redco::lua
