// The Lua class Optimizer: steps outside of a Trainer.

#include "callbacks.h"
#include "optim.h"
#include "state/arguments.h"
#include "state/object.h"
#include "state/values.h"
#include "training_objects.h"

#include <redco/error.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>

#include <map>
#include <string>
#include <utility>

namespace redco::lua {

namespace {

std::shared_ptr<Optimizer> check_self(lua_State* L, const char* method) {
  auto optimizer = test_object<LuaOptimizer>(L, 1);
  require(optimizer != nullptr, method, ": expected an Optimizer, got ", described(L, 1),
          "; methods are called with a colon");
  return optimizer->optimizer;
}

Tree check_table(lua_State* L, int index, const std::string& what) {
  require(lua_istable(L, index), what, ": expected a table, got ", described(L, index));
  return check_tree(L, index, what.c_str());
}

// Reads {step, opt_state}, and no other fields: a Trainer's state has more.
Tree check_state_table(lua_State* L, int index, const std::string& method) {
  const std::string what = method + ": state";
  require(lua_istable(L, index), what, ": expected the table that Optimizer:init returned, got ",
          described(L, index));
  Tree::Dict state;
  for (const char* name : {"step", "opt_state"}) {
    lua_getfield(L, index, name);
    require(!lua_isnil(L, -1), what, ": it has no ", name,
            "; expected the table that Optimizer:init returned");
    state[name] = check_tree(L, lua_gettop(L), (what + "." + name).c_str());
    lua_pop(L, 1);
  }
  return state;
}

// Copies the numbers of a changed state back to its Lua table; its tensors are shared.
void take_back(lua_State* L, int index, const Tree& state) {
  for (const char* name : {"step", "opt_state"}) {
    push_tree(L, state.at(name));
    lua_setfield(L, index, name);
  }
}

int init(lua_State* L) {
  auto optimizer = check_self(L, "Optimizer:init");
  push_tree(L, init_state(*optimizer, check_table(L, 2, "Optimizer:init: params")));
  return 1;
}

int step(lua_State* L) {
  auto optimizer = check_self(L, "Optimizer:step");
  Tree grads = check_table(L, 2, "Optimizer:step: grads");
  Tree state = check_state_table(L, 3, "Optimizer:step");
  take_step(*optimizer, grads, state, check_table(L, 4, "Optimizer:step: params"));
  push_integer(L, state.at("step").as<int64_t>());
  lua_setfield(L, 3, "step");
  return 0;
}

at::Tensor copy_of(const std::string&, const at::Tensor& tensor) {
  return tensor.defined() ? tensor.detach().clone() : tensor;
}

int update(lua_State* L) {
  auto optimizer = check_self(L, "Optimizer:update");
  Tree grads = check_table(L, 2, "Optimizer:update: grads");
  Tree given = check_state_table(L, 3, "Optimizer:update");
  Tree params = check_table(L, 4, "Optimizer:update: params");
  at::NoGradGuard no_grad;
  Tree state = map_tensors(given, copy_of), updated = map_tensors(params, copy_of);
  take_step(*optimizer, grads, state, updated);
  std::map<std::string, at::Tensor> after;
  for (auto& [name, tensor] : named_tensors(updated)) after[name] = tensor;
  push_tree(L, map_tensors(params, [&](const std::string& name, const at::Tensor& before) {
              if (!before.is_floating_point()) return at::zeros_like(before);
              return after.at(name).sub_(before.detach());
            }));
  push_tree(L, state);
  return 2;
}

int observe(lua_State* L) {
  auto optimizer = check_self(L, "Optimizer:observe");
  Tree state = check_state_table(L, 2, "Optimizer:observe");
  Metrics metrics = check_metrics(L, 3, "Optimizer:observe: metrics");
  optimizer->observe(metrics, state.at("opt_state"));
  take_back(L, 2, state);
  return 0;
}

int learning_rate(lua_State* L) {
  auto optimizer = check_self(L, "Optimizer:learning_rate");
  Tree state = check_state_table(L, 2, "Optimizer:learning_rate");
  require(state.at("step").is<int64_t>(), "Optimizer:learning_rate: state.step is no whole number");
  auto rates = optimizer->learning_rates(state.at("step").as<int64_t>(), state.at("opt_state"));
  if (rates.empty())
    lua_pushnil(L);
  else
    lua_pushnumber(L, rates.front());
  return 1;
}

int averages(lua_State* L) {
  auto optimizer = check_self(L, "Optimizer:averages");
  Tree state = check_state_table(L, 2, "Optimizer:averages");
  Tree params = check_table(L, 3, "Optimizer:averages: params");
  push_tree(L, averages_of(*optimizer, state.at("opt_state"), params));
  return 1;
}

}  // namespace

void add_optimizer_type(lua_State* L) {
  make_object_type<LuaOptimizer>(
      L,
      "Optimizer {}\n"
      "Turns gradients into updates of parameters: in a Trainer, or in a script's loop by "
      "`init` and `step`. It has no state itself.",
      {{"init", init,
        "init(self, params) -> {step: integer, opt_state: table}\n"
        "Returns the optimizer state for a tree of parameters, before the first step. Its "
        "tensors are changed by `step`. `Deployer:save_ckpt` saves it as opt_state."},
       {"step", step,
        "step(self, grads: table, state: table, params)\n"
        "Performs one step in place, with the arithmetic of a Trainer: changes the tensors of "
        "`params` and `state`, and counts state.step. `grads` is a tree as `redco.grad` returns; "
        "its tensors keep their values. Parameters without a gradient stay as they are. Raises an "
        "error, and changes nothing, if gradients or state do not fit the parameters."},
       {"update", update,
        "update(self, grads: table, state: table, params) -> table, table\n"
        "The same without changing anything: returns the tree of differences to add to the "
        "parameters, zeros where there is no gradient, and the next state. It needs memory for "
        "copies of both; `step` does not."},
       {"observe", observe,
        "observe(self, state: table, metrics)\n"
        "Passes on the metrics of an evaluation, a table of numbers, to learning rates made by "
        "`on_plateau`. Trainer:fit does it after each of its evaluations."},
       {"learning_rate", learning_rate,
        "learning_rate(self, state: table) -> number or nil\n"
        "Returns the learning rate of the next step; with several, that of the first."},
       {"averages", averages,
        "averages(self, state: table, params) -> table\n"
        "Returns copies of the averages of `params` that `ema` keeps in `state`, which is that of "
        "`init`, Trainer.state, or the `state` of a loss_fn."}});
}

}  // namespace redco::lua
