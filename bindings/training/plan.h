// Trainer:plan, and `redco-lua plan`, which runs a script and plans it when it begins to train.

#pragma once

#include "training_objects.h"

#include <redco/dataset.h>
#include <redco/deployer.h>

#include <cstdint>
#include <lua.hpp>
#include <memory>
#include <optional>

namespace redco::lua {

/// The Deployer of a planned script: it connects and writes nothing.
std::shared_ptr<Deployer> make_planned_deployer(DeployerOptions options);

/// Plans the training of a planned script, and ends the script with an error. Returns if a later
/// training is to be planned: this one is passed by. `per_device_batch_size`: none divides the
/// global batch evenly.
void plan_and_end(lua_State* L, const LuaTrainer& trainer, const Dataset& examples,
                  std::optional<int64_t> per_device_batch_size,
                  std::optional<int64_t> global_batch_size);

/// The examples of a training, at a time on each device and in an optimizer step.
struct BatchSizes {
  std::optional<int64_t> per_device, global;
};

/// If the Trainer's Deployer has no layout yet, plans and sets it, and returns the batch sizes with
/// it; else returns those given.
BatchSizes with_layout(lua_State* L, LuaTrainer& trainer, const Dataset& examples,
                       const BatchSizes& given);

/// Trainer:plan and its text.
int plan(lua_State* L);
extern const char* const plan_text;

/// Adds what redco.plan needs to the table on top of the stack.
void add_plan(lua_State* L);

}  // namespace redco::lua
