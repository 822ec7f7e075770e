// The script of `redco-lua check`.

#include "check.h"

#include "optim.h"
#include "state/object.h"
#include "state/values.h"

#include <redco/detail/without_statistics.h>
#include <redco/error.h>

#include <algorithm>
#include <string>
#include <utility>

namespace redco::lua {

namespace {

// The key of the function that checks a training, in the registry.
constexpr const char* checker = "redco.check";
constexpr const char* end_of_check = "check: the training is checked";

// start_check(f): a training of this state calls f(trainer, of_trainer, of_training) instead, with
// the arguments of redco.Trainer and of its method; nil ends that.
int start_check(lua_State* L) {
  lua_settop(L, 1);
  lua_setfield(L, LUA_REGISTRYINDEX, checker);
  return 0;
}

// Whether an error is the one that ends a checked script.
int is_end_of_check(lua_State* L) {
  lua_pushboolean(L, std::string(luaL_checkstring(L, 1)).find(end_of_check) != std::string::npos);
  return 1;
}

// The dotted names of the params that the optimizer trains.
int trained_names(lua_State* L) {
  auto optimizer = check_object<LuaOptimizer>(L, 1, "trained_names");
  Tree params = check_tree(L, 2);
  auto trained = without_statistics(optimizer->optimizer, params);
  lua_newtable(L);
  int n = 0;
  for (const auto& [name, param] : named_tensors(params)) {
    if (!param.is_floating_point() || !trained->trains(name, param)) continue;
    lua_pushstring(L, name.c_str());
    lua_rawseti(L, -2, ++n);
  }
  return 1;
}

// The highest of an optimizer's learning rates at a step; nil if it has none.
int highest_rate(lua_State* L) {
  auto optimizer = check_object<LuaOptimizer>(L, 1, "highest_rate");
  auto rates =
      optimizer->optimizer->learning_rates(check_integer(L, 2, "highest_rate"), check_tree(L, 3));
  if (rates.empty()) return 0;
  lua_pushnumber(L, *std::max_element(rates.begin(), rates.end()));
  return 1;
}

}  // namespace

bool is_checking(lua_State* L) {
  return balanced(L, [&] {
    lua_getfield(L, LUA_REGISTRYINDEX, checker);
    return !lua_isnil(L, -1);
  });
}

void set_options_of_checked(DeployerOptions& options) {
  DeployerOptions alone;
  alone.seed = options.seed;
  alone.device = options.device;
  alone.verbose = false;
  options = std::move(alone);
}

void keep_arguments(lua_State* L, int index, LuaTrainer& trainer) {
  if (is_checking(L)) trainer.given = Ref(L, index);
}

int check_and_end(lua_State* L, int index, const LuaTrainer& trainer) {
  luaL_checkstack(L, 6, "check");
  lua_getfield(L, LUA_REGISTRYINDEX, checker);
  lua_pushvalue(L, 1);
  trainer.given.push();
  lua_pushvalue(L, index);
  call(L, 3, 0);
  fail(end_of_check);
}

void add_check(lua_State* L) {
  for (const auto& [name, function] :
       {std::pair<const char*, lua_CFunction>{"start_check", start_check},
        {"is_end_of_check", is_end_of_check},
        {"trained_names", trained_names},
        {"highest_rate", highest_rate}}) {
    lua_pushcfunction(L, function);
    lua_setfield(L, -2, name);
  }
}

}  // namespace redco::lua
