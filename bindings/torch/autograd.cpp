// Gradients: torch.no_grad, torch.autocast, torch.autograd and Tensor:backward.

#include "state/arguments.h"
#include "state/collector.h"
#include "state/context.h"
#include "state/registry.h"
#include "state/tensor.h"
#include "state/values.h"
#include "torch.h"

#include <redco/autocast.h>
#include <redco/detail/recomputing.h>
#include <redco/error.h>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

namespace redco::lua {

namespace {

using torch::autograd::variable_list;

struct BackwardOptions {
  std::optional<bool> retain_graph;
  bool create_graph = false;
  bool allow_unused = false;
  variable_list grad_outputs;
};

variable_list check_tensors(lua_State* L, int index, const char* what) {
  if (at::Tensor* tensor = test_tensor(L, index)) return {*tensor};
  require(lua_istable(L, index), what, ": expected a Tensor or a list of them, got ",
          described(L, index));
  variable_list tensors;
  for (int i = 1; i <= int(lua_objlen(L, index)); ++i) {
    lua_rawgeti(L, index, i);
    at::Tensor* tensor = test_tensor(L, -1);
    require(tensor != nullptr, what, ": entry ", i, " is ", described(L, -1), ", not a Tensor");
    tensors.push_back(*tensor);
    lua_pop(L, 1);
  }
  return tensors;
}

// Reads the table of named arguments at `index`. `names` are those that `function` accepts.
BackwardOptions check_options(lua_State* L, int index, const std::string& function,
                              const std::vector<std::string>& names) {
  BackwardOptions options;
  if (lua_isnoneornil(L, index)) return options;
  require(lua_istable(L, index), function, ": expected a table of named arguments, got ",
          described(L, index));
  for (lua_pushnil(L); lua_next(L, index); lua_pop(L, 1)) {
    std::string name = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : "";
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      std::string near = nearest(name, names);
      fail(function, ": there is no named argument ", describe(L, -2),
           near.empty() ? "" : "; the nearest is ", near);
    }
    if (name == "grad_outputs") {
      options.grad_outputs = check_tensors(L, lua_gettop(L), "torch.autograd.grad: grad_outputs");
      continue;
    }
    require(lua_isboolean(L, -1), function, ": ", name, ": expected true or false, got ",
            described(L, -1));
    bool value = lua_toboolean(L, -1);
    if (name == "retain_graph")
      options.retain_graph = value;
    else if (name == "create_graph")
      options.create_graph = value;
    else
      options.allow_unused = value;
  }
  return options;
}

// A backward pass. A function that backward runs again may start a nested pass. LibTorch runs the
// 61st level on another thread, where neither the generator nor the limits of the engine apply.
class BackwardPass {
 public:
  BackwardPass() {
    require(depth_ < most, "backward: it runs inside ", most,
            " other backward passes, and no more are allowed. Backward runs a function of "
            "redco.checkpoint again, with the backward passes in it: compute those outside");
    ++depth_;
  }
  ~BackwardPass() { --depth_; }
  BackwardPass(const BackwardPass&) = delete;
  BackwardPass& operator=(const BackwardPass&) = delete;

 private:
  static constexpr int most = 50;
  inline static thread_local int depth_ = 0;
  BackwardOnThisThread on_this_thread_;
};

int backward(lua_State* L) {
  const at::Tensor& self = check_tensor(L, 1);
  variable_list gradients;
  at::Tensor* gradient = test_tensor(L, 2);
  if (gradient != nullptr) gradients.push_back(*gradient);
  require(gradient != nullptr || lua_isnoneornil(L, 2) || lua_istable(L, 2),
          "Tensor:backward: gradient: expected a Tensor, got ", described(L, 2));
  bool options_second = gradient == nullptr && lua_istable(L, 2);
  BackwardOptions options =
      check_options(L, options_second ? 2 : 3, "Tensor:backward", {"retain_graph", "create_graph"});
  require(gradient != nullptr || self.numel() == 1,
          "Tensor:backward: only a tensor of one element needs no `gradient`; this one is ",
          described(self));
  BackwardPass pass;
  collect_before_backward(L);
  torch::autograd::backward({self}, gradients, options.retain_graph, options.create_graph);
  return 0;
}

int grad(lua_State* L) {
  variable_list outputs = check_tensors(L, 1, "torch.autograd.grad: outputs");
  variable_list inputs = check_tensors(L, 2, "torch.autograd.grad: inputs");
  BackwardOptions options =
      check_options(L, 3, "torch.autograd.grad",
                    {"grad_outputs", "retain_graph", "create_graph", "allow_unused"});
  for (size_t i = 0; i < outputs.size(); ++i)
    require(outputs[i].numel() == 1 || i < options.grad_outputs.size(),
            "torch.autograd.grad: only an output of one element needs no `grad_outputs`; output ",
            i + 1, " is ", described(outputs[i]));
  BackwardPass pass;
  collect_before_backward(L);
  variable_list gradients =
      torch::autograd::grad(outputs, inputs, options.grad_outputs, options.retain_graph,
                            options.create_graph, /*allow_unused=*/true);
  lua_createtable(L, int(gradients.size()), 0);
  for (size_t i = 0; i < gradients.size(); ++i) {
    require(gradients[i].defined() || options.allow_unused, "torch.autograd.grad: input ", i + 1,
            ", a Tensor ", described(inputs[i]),
            ", is not used by the outputs; with {allow_unused = true} its gradient is false");
    if (gradients[i].defined())
      push_tensor(L, gradients[i]);
    else
      lua_pushboolean(L, false);  // nil would end the list
    lua_rawseti(L, -2, int(i) + 1);
  }
  return 1;
}

// Calls argument 1 with the other arguments, with gradients recorded or not.
template <bool enabled>
int with_grad_mode(lua_State* L) {
  require(lua_isfunction(L, 1), enabled ? "torch.enable_grad" : "torch.no_grad",
          ": expected a function to call, got ", described(L, 1));
  at::AutoGradMode mode(enabled);
  int n_args = lua_gettop(L) - 1;
  call(L, n_args, LUA_MULTRET);
  return lua_gettop(L);
}

// torch.autocast(device, {dtype, enabled}, f, ...); the table may be omitted.
int with_autocast(lua_State* L) {
  const char* name = "torch.autocast";
  require(lua_type(L, 1) == LUA_TSTRING, name, ": expected the name of a device first, got ",
          described(L, 1));
  const std::string given = lua_tostring(L, 1);
  require(given == "cpu" || given == "cuda", name, ": the device \"", given,
          "\" is not one of \"cpu\" and \"cuda\"");
  const at::DeviceType device = given == "cpu" ? at::kCPU : at::kCUDA;
  if (lua_isfunction(L, 2)) {
    lua_newtable(L);
    lua_insert(L, 2);
  }
  NamedArguments args(L, 2, name);
  auto dtype = args.get<c10::ScalarType>("dtype", device == at::kCPU ? at::kBFloat16 : at::kHalf);
  bool enabled = args.get<bool>("enabled", true);
  args.finish();
  require(dtype == at::kHalf || dtype == at::kBFloat16, name, ": dtype = \"", dtype_name(dtype),
          "\" is not one of \"float16\" and \"bfloat16\"");
  require(lua_isfunction(L, 3), name, ": expected a function to call, got ", described(L, 3));
  Autocast region(device, enabled ? std::optional(dtype) : std::nullopt);
  call(L, lua_gettop(L) - 3, LUA_MULTRET);
  return lua_gettop(L) - 2;
}

int is_grad_enabled(lua_State* L) {
  lua_pushboolean(L, at::GradMode::is_enabled());
  return 1;
}

int set_grad_enabled(lua_State* L) {
  require(lua_isboolean(L, 1), "torch.set_grad_enabled: expected a boolean, got ", described(L, 1));
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
        "Calls f(...) and records operators for gradients, even inside `no_grad`."},
       {"autocast", with_autocast,
        "autocast(device, {dtype = nil, enabled = true}, f, ...) -> what f returns\n"
        "Calls f(...) in mixed precision. On tensors of `device`, \"cpu\" or \"cuda\", products, "
        "convolutions and attention run in `dtype`, \"bfloat16\" (the default on a CPU) or "
        "\"float16\" (the default on a GPU). Norms, softmax, losses, exponents, logarithms, "
        "powers and sums run in float32. All other operators run in the dtype of their "
        "arguments. float64 tensors stay float64. The policy is that of PyTorch on GPUs, on "
        "both devices. Call backward outside of f. `enabled = false` switches autocast off for "
        "f. The table may be omitted. A Trainer does this with compute_dtype = "
        "\"autocast:bfloat16\"."},
       {"is_grad_enabled", is_grad_enabled,
        "is_grad_enabled() -> boolean\n"
        "Returns true if operators are recorded for gradients."},
       {"set_grad_enabled", set_grad_enabled,
        "set_grad_enabled(enabled)\n"
        "Switches recording on or off until the next call."}});
  lua_newtable(L);
  register_value(L, "torch.autograd", "torch.autograd\nGradients of recorded operators.");
  register_functions(
      L, "torch.autograd.",
      {{"grad", grad,
        "grad(outputs: Tensor or list of Tensors, inputs: Tensor or list of Tensors, "
        "{grad_outputs: list of Tensors = nil, retain_graph = nil, create_graph = nil, "
        "allow_unused = nil}) -> list of "
        "Tensors\n"
        "Returns the gradients of the sum of `outputs`, weighted by `grad_outputs`, with "
        "respect to each input and in its shape. An input that the outputs do not depend on raises "
        "an error; "
        "with `allow_unused` its gradient is false."}});
  lua_setfield(L, -2, "autograd");
}

void add_backward(lua_State* L) {
  register_functions(
      L, "Tensor:",
      {{"backward", backward,
        "backward(self, gradient = nil, {retain_graph = nil, create_graph = nil})\n"
        "Adds the gradient of this tensor to `grad` of every leaf tensor that requires one. "
        "`gradient` has the shape of the tensor; it may be omitted for a tensor of one element."}});
}

}  // namespace redco::lua
