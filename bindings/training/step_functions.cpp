// The functions of a script that a Trainer calls in its steps.

#include "step_functions.h"

#include "callbacks.h"
#include "state/collector.h"
#include "state/tensor.h"
#include "state/values.h"

#include <redco/error.h>

#include <ATen/ops/scalar_tensor.h>

#include <map>
#include <string>
#include <utility>

namespace redco::lua {

void push_state(lua_State* L, const TrainState& state, const OfScript& own) {
  lua_createtable(L, 0, 6);
  push_tree(L, state.params);
  lua_setfield(L, -2, "params");
  push_tree(L, state.opt_state);
  lua_setfield(L, -2, "opt_state");
  push_integer(L, state.step);
  lua_setfield(L, -2, "step");
  if (state.loss_scale) {
    lua_createtable(L, 0, 2);
    lua_pushnumber(L, state.loss_scale->scale);
    lua_setfield(L, -2, "scale");
    push_integer(L, state.loss_scale->good_steps);
    lua_setfield(L, -2, "good_steps");
    lua_setfield(L, -2, "loss_scale");
  }
  if (own.apply_fn) {
    own.apply_fn.push();
    lua_setfield(L, -2, "apply_fn");
  }
  if (own.custom_state) {
    own.custom_state.push();
    lua_setfield(L, -2, "custom_state");
  }
}

namespace {

at::Tensor check_weight(lua_State* L, int index) {
  if (lua_isnil(L, index)) return {};
  if (at::Tensor* tensor = test_tensor(L, index)) {
    require(tensor->numel() == 1, "loss_fn: the weight must have one element, it is ",
            described(*tensor));
    return *tensor;
  }
  auto number = test_scalar(L, index);
  require(number.has_value(),
          "loss_fn: expected loss or loss, weight to be returned; the weight is ",
          described(L, index));
  return at::scalar_tensor(*number, at::kFloat);
}

// Numbers and tensors of one element, by name.
std::map<std::string, at::Tensor> check_loss_metrics(lua_State* L, int index) {
  std::map<std::string, at::Tensor> metrics;
  if (lua_isnil(L, index)) return metrics;
  require(
      lua_istable(L, index),
      "loss_fn: expected loss, weight and a table of metrics to be returned; the third value is ",
      described(L, index));
  lua_pushnil(L);
  while (lua_next(L, index) != 0) {
    require(lua_type(L, -2) == LUA_TSTRING, "loss_fn: the key of a metric is ", described(L, -2),
            ", expected its name");
    std::string name = lua_tostring(L, -2);
    auto number = test_scalar(L, lua_gettop(L));
    at::Tensor* tensor = test_tensor(L, -1);
    require(tensor || number, "loss_fn: the metric '", name, "' is ", described(L, lua_gettop(L)),
            ", expected a number or a tensor of one element");
    metrics[name] = tensor ? *tensor : at::scalar_tensor(*number, at::kFloat);
    lua_pop(L, 1);
  }
  return metrics;
}

// The functions in the `defaults` argument of a train_step_fn.
int defaults_value_and_grad(lua_State* L) {
  auto* trainer = static_cast<Trainer*>(lua_touserdata(L, lua_upvalueindex(1)));
  require(lua_isfunction(L, 1), "defaults.value_and_grad: expected a function of params, got ",
          described(L, 1));
  Ref function(L, 1);
  ValueAndGrad result = trainer->value_and_grad([&](const Tree& params) {
    lua_State* state = function.state();
    return balanced(state, [&] {
      function.push();
      push_tree(state, params);
      call(state, 1, 1);
      at::Tensor value = check_tensor(state, lua_gettop(state));
      collect_before_backward(state);
      return value;
    });
  });
  push_tensor(L, result.value);
  push_tree(L, result.grads);
  return 2;
}

int defaults_apply_gradients(lua_State* L) {
  auto* trainer = static_cast<Trainer*>(lua_touserdata(L, lua_upvalueindex(1)));
  push_tensor(L, trainer->apply_gradients(check_tree(L, 1)));
  return 1;
}

void push_defaults(lua_State* L, Trainer& trainer, const Ref& loss_fn) {
  lua_createtable(L, 0, 4);
  loss_fn.push();
  lua_setfield(L, -2, "loss_fn");
  lua_pushlightuserdata(L, &trainer);
  lua_pushcclosure(L, defaults_value_and_grad, 1);
  lua_setfield(L, -2, "value_and_grad");
  lua_pushlightuserdata(L, &trainer);
  lua_pushcclosure(L, defaults_apply_gradients, 1);
  lua_setfield(L, -2, "apply_gradients");
  if (auto lr = trainer.learning_rate()) {
    lua_pushnumber(L, *lr);
    lua_setfield(L, -2, "learning_rate");
  }
}

}  // namespace

LossFn make_loss_fn(const Ref& function, const OfScript& own) {
  return [function, own](at::Generator rng, const TrainState& state, const Tree& params,
                         const Tree& batch, bool is_training) -> Loss {
    lua_State* L = function.state();
    return balanced(L, [&]() -> Loss {
      const MathRandom math_random(L);
      luaL_checkstack(L, 10, "loss_fn");
      function.push();
      push_generator(L, std::move(rng));
      push_state(L, state, own);
      push_tree(L, params);
      push_tree(L, batch);
      lua_pushboolean(L, is_training);
      call(L, 5, 3);
      int first = lua_gettop(L) - 2;
      at::Tensor* loss = test_tensor(L, first);
      require(loss != nullptr && loss->numel() == 1,
              "loss_fn: expected a tensor of one element to be returned, got ", described(L, first),
              loss != nullptr          ? "; loss:mean() has one"
              : lua_isnil(L, first)    ? "; does it lack a `return`?"
              : lua_isnumber(L, first) ? "; after loss:item() there are no gradients"
                                       : "");
      Loss result{*loss, check_weight(L, first + 1), check_loss_metrics(L, first + 2)};
      if (is_training) collect_before_backward(L);
      return result;
    });
  };
}

TrainStepFn make_train_step_fn(const Ref& function, const Ref& loss_fn, const OfScript& own) {
  if (!function) return {};
  return [function, loss_fn, own](at::Generator rng, Trainer& trainer, const Tree& batch) {
    lua_State* L = function.state();
    return balanced(L, [&] {
      luaL_checkstack(L, 10, "train_step_fn");
      function.push();
      push_generator(L, std::move(rng));
      push_state(L, trainer.state(), own);
      push_tree(L, batch);
      push_defaults(L, trainer, loss_fn);
      call(L, 4, 1);
      require(lua_istable(L, -1), "train_step_fn: expected a table of metrics to be returned, got ",
              described(L, lua_gettop(L)));
      return check_tree(L, lua_gettop(L), "what train_step_fn returned");
    });
  };
}

}  // namespace redco::lua
