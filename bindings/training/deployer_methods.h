// Groups of the Deployer's methods.

#pragma once

#include "state/registry.h"

#include <redco/deployer.h>

#include <lua.hpp>
#include <memory>
#include <vector>

namespace redco::lua {

/// Returns the Deployer that a method is called on.
std::shared_ptr<Deployer> check_deployer(lua_State* L);

std::vector<Function> checkpoint_methods();  // save_ckpt, load_ckpt, ...
std::vector<Function> log_methods();         // log_info, log_metrics, ..., save_outputs

}  // namespace redco::lua
