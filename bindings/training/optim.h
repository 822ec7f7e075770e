// Optimizers and schedules as Lua values.

#pragma once

#include <redco/optim.h>
#include <redco/schedule.h>

#include <lua.hpp>
#include <memory>
#include <string>

namespace redco::lua {

class NamedArguments;

struct LuaOptimizer {
  static constexpr const char* lua_name = "Optimizer";
  std::shared_ptr<Optimizer> optimizer;
  std::string text;

  const std::string& described() const { return text; }
};

struct LuaSchedule {
  static constexpr const char* lua_name = "Schedule";
  Schedule schedule;
};

/// Pushes the schedule as a function of the step.
void push_schedule(lua_State* L, Schedule schedule);

/// Reads a number, or a function of the step. `what` begins errors.
Schedule check_schedule(lua_State* L, int index, const std::string& what);

std::shared_ptr<Optimizer> check_optimizer(NamedArguments& args, const char* name);

/// Reads a number or a function of the step. Returns an empty schedule if the argument is missing.
Schedule check_schedule_argument(NamedArguments& args, const char* name);

/// The schedules, into the module on top of the stack.
void add_schedules(lua_State* L);
/// The class of optimizers, with its methods.
void add_optimizer_type(lua_State* L);

/// The module `redco.optim`.
int open_optim(lua_State* L);

}  // namespace redco::lua
