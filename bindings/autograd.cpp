#include "context.h"
#include "registry.h"
#include "tensor.h"
#include "torch.h"
#include "values.h"

#include <redco/error.h>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <optional>
#include <vector>

namespace redco::lua {

namespace {

using torch::autograd::variable_list;

std::optional<bool> boolean_field(lua_State* L, int options, const char* name) {
  lua_getfield(L, options, name);
  std::optional<bool> value;
  if (!lua_isnil(L, -1)) value = lua_toboolean(L, -1);
  lua_pop(L, 1);
  return value;
}

struct BackwardOptions {
  std::optional<bool> retain_graph;
  bool create_graph = false;
  bool allow_unused = false;
};

BackwardOptions check_backward_options(lua_State* L, int index) {
  BackwardOptions options;
  if (lua_isnoneornil(L, index)) return options;
  require(lua_istable(L, index), "expected a table {retain_graph =, create_graph =}, got ",
          describe(L, index));
  options.retain_graph = boolean_field(L, index, "retain_graph");
  options.create_graph = boolean_field(L, index, "create_graph").value_or(false);
  options.allow_unused = boolean_field(L, index, "allow_unused").value_or(false);
  return options;
}

variable_list check_tensors(lua_State* L, int index, const char* what) {
  if (at::Tensor* tensor = test_tensor(L, index)) return {*tensor};
  require(lua_istable(L, index), what, ": expected a Tensor or a list of them, got ",
          describe(L, index));
  variable_list tensors;
  for (int i = 1; i <= static_cast<int>(lua_objlen(L, index)); ++i) {
    lua_rawgeti(L, index, i);
    at::Tensor* tensor = test_tensor(L, -1);
    require(tensor != nullptr, what, ": entry ", i, " is ", describe(L, -1), ", not a Tensor");
    tensors.push_back(*tensor);
    lua_pop(L, 1);
  }
  return tensors;
}

int backward(lua_State* L) {
  const at::Tensor& self = check_tensor(L, 1);
  variable_list gradients;
  int options_index = 2;
  if (lua_isnoneornil(L, 2)) {
    options_index = 3;
  } else if (at::Tensor* gradient = test_tensor(L, 2)) {
    gradients.push_back(*gradient);
    options_index = 3;
  }
  require(!gradients.empty() || self.numel() == 1,
          "Tensor:backward: only a tensor of one element needs no `gradient`; this one is ",
          describe(self));
  BackwardOptions options = check_backward_options(L, options_index);
  torch::autograd::backward({self}, gradients, options.retain_graph, options.create_graph);
  return 0;
}

int grad(lua_State* L) {
  variable_list outputs = check_tensors(L, 1, "torch.autograd.grad: outputs");
  variable_list inputs = check_tensors(L, 2, "torch.autograd.grad: inputs");
  variable_list grad_outputs;
  BackwardOptions options;
  if (!lua_isnoneornil(L, 3)) {
    options = check_backward_options(L, 3);
    lua_getfield(L, 3, "grad_outputs");
    if (!lua_isnil(L, -1))
      grad_outputs = check_tensors(L, lua_gettop(L), "torch.autograd.grad: grad_outputs");
    lua_pop(L, 1);
  }
  variable_list gradients =
      torch::autograd::grad(outputs, inputs, grad_outputs, options.retain_graph,
                            options.create_graph, options.allow_unused);
  lua_createtable(L, static_cast<int>(gradients.size()), 0);
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (gradients[i].defined())
      push_tensor(L, gradients[i]);
    else
      lua_pushboolean(L, false);  // a hole would end the list
    lua_rawseti(L, -2, static_cast<int>(i) + 1);
  }
  return 1;
}

// Calls argument 1 with the others, gradients recorded or not.
template <bool enabled>
int with_grad_mode(lua_State* L) {
  require(lua_isfunction(L, 1), enabled ? "torch.enable_grad" : "torch.no_grad",
          ": expected a function to call, got ", describe(L, 1));
  at::AutoGradMode mode(enabled);
  int n_args = lua_gettop(L) - 1;
  call(L, n_args, LUA_MULTRET);
  return lua_gettop(L);
}

int is_grad_enabled(lua_State* L) {
  lua_pushboolean(L, at::GradMode::is_enabled());
  return 1;
}

int set_grad_enabled(lua_State* L) {
  require(lua_isboolean(L, 1), "torch.set_grad_enabled: expected a boolean, got ", describe(L, 1));
  at::GradMode::set_enabled(lua_toboolean(L, 1));
  return 0;
}

}  // namespace

void add_autograd(lua_State* L) {
  register_functions(
      L, "torch.",
      {{"no_grad", with_grad_mode<false>,
        "no_grad(f, ...) -> what f returns\n"
        "Calls f(...) without recording operators for gradients."},
       {"enable_grad", with_grad_mode<true>,
        "enable_grad(f, ...) -> what f returns\n"
        "Calls f(...) with operators recorded, also inside `no_grad`."},
       {"is_grad_enabled", is_grad_enabled,
        "is_grad_enabled() -> boolean\nTrue when operators are recorded for gradients."},
       {"set_grad_enabled", set_grad_enabled,
        "set_grad_enabled(enabled)\nSwitches recording on or off until it is called again."}});
  lua_newtable(L);
  register_functions(
      L, "torch.autograd.",
      {{"grad", grad,
        "grad(outputs, inputs, {grad_outputs, retain_graph, create_graph, allow_unused}) -> list\n"
        "The gradients of the sum of `outputs`, weighted by `grad_outputs`, for each input. With "
        "`allow_unused` an input that took no part gives false; without, an error."}});
  lua_setfield(L, -2, "autograd");
}

void add_backward(lua_State* L) {
  register_functions(
      L, "Tensor:",
      {{"backward", backward,
        "backward(self, gradient, {retain_graph, create_graph})\n"
        "Adds the gradient of this tensor into `grad` of every leaf tensor that requires one. "
        "`gradient` has the shape of the tensor and may be left out for one element."}});
}

}  // namespace redco::lua
