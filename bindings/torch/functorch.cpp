// The functorch levels of LibTorch, on which `redco.vmap` and `redco.grad` run Lua functions.
#include "state/context.h"
#include "state/registry.h"
#include "state/tensor.h"
#include "state/values.h"
#include "torch.h"

#include <redco/detail/plain_attention.h>
#include <redco/error.h>

#include <ATen/core/grad_mode.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/functorch/TensorWrapper.h>

#include <string>

namespace redco::lua {

namespace {

namespace functorch = at::functorch;

// Removes the current level at the end of its scope, also after an error.
class Level {
 public:
  explicit Level(int64_t level) : level_(level) {}
  ~Level() { functorch::popDynamicLayerAndDeleteMetadata(); }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;
  int64_t number() const { return level_; }

 private:
  int64_t level_;
};

functorch::RandomnessType check_randomness(lua_State* L, int index) {
  std::string name = luaL_checkstring(L, index);
  if (name == "error") return functorch::RandomnessType::Error;
  if (name == "same") return functorch::RandomnessType::Same;
  if (name == "different") return functorch::RandomnessType::Different;
  fail("vmap: randomness is \"error\", \"same\" or \"different\", got \"", name, "\"");
}

// Calls the function at index `function` with the level's number as its argument.
int call_at(lua_State* L, int function, const Level& level) {
  lua_pushvalue(L, function);
  push_integer(L, level.number());
  call(L, 1, LUA_MULTRET);
  return lua_gettop(L) - function;
}

// with_vmap(body, batch_size, randomness)
int with_vmap(lua_State* L) {
  int64_t batch_size = check_integer(L, 2, "vmap: batch size");
  Level level(functorch::initAndPushDynamicLayer(functorch::TransformType::Vmap,
                                                 c10::SymInt(batch_size), check_randomness(L, 3)));
  lua_settop(L, 1);
  return call_at(L, 1, level);
}

int with_grad(lua_State* L) {
  Level level(functorch::initAndPushDynamicLayer(functorch::TransformType::Grad, std::nullopt,
                                                 std::nullopt, at::GradMode::is_enabled()));
  at::AutoGradMode record(true);
  lua_settop(L, 1);
  return call_at(L, 1, level);
}

int in_transform(lua_State* L) {
  lua_pushboolean(L, functorch::maybeCurrentDynamicLayer().has_value());
  return 1;
}

int wrap_batch(lua_State* L) {
  const at::Tensor& tensor = check_tensor(L, 1);
  int64_t dim = check_integer(L, 2, "vmap: in_dims");
  require(dim >= -tensor.dim() && dim < tensor.dim(), "vmap: in_dims names dimension ", dim,
          " of a tensor ", described(tensor));
  push_tensor(L,
              functorch::addBatchDim(tensor, dim < 0 ? dim + tensor.dim() : dim,
                                     check_integer(L, 3, "vmap: level")),
              0);
  return 1;
}

// unwrap_batch(tensor, out_dim, level, batch_size): a result that does not depend on the batch is
// expanded to its size.
int unwrap_batch(lua_State* L) {
  const at::Tensor& tensor = check_tensor(L, 1);
  int64_t out_dim = check_integer(L, 2, "vmap: out_dims");
  int64_t level = check_integer(L, 3, "vmap: level");
  int64_t batch_size = check_integer(L, 4, "vmap: batch size");
  require(out_dim >= -tensor.dim() - 1 && out_dim <= tensor.dim(), "vmap: out_dims is ", out_dim,
          ", but the function returned a tensor ", described(tensor));
  auto* batched = functorch::maybeGetBatchedImpl(tensor);
  if (batched != nullptr && batched->level() == level) {
    push_tensor(L, batched->value().movedim(batched->bdim(), out_dim), 0);
    return 1;
  }
  at::Tensor expanded = tensor.unsqueeze(out_dim);
  std::vector<int64_t> sizes = expanded.sizes().vec();
  sizes[size_t(out_dim < 0 ? out_dim + expanded.dim() : out_dim)] = batch_size;
  push_tensor(L, expanded.expand(sizes), 0);
  return 1;
}

int wrap_grad(lua_State* L) {
  push_tensor(
      L, functorch::makeTensorWrapper(check_tensor(L, 1), check_integer(L, 2, "grad: level")), 0);
  return 1;
}

int unwrap_grad(lua_State* L) {
  const at::Tensor& tensor = check_tensor(L, 1);
  int64_t level = check_integer(L, 2, "grad: level");
  auto* wrapper = functorch::maybeGetTensorWrapper(tensor);
  bool mine = wrapper != nullptr && wrapper->level().has_value() && *wrapper->level() == level;
  push_tensor(L, mine ? wrapper->value() : tensor, 0);
  return 1;
}

// twice_differentiable(f, ...)
int twice_differentiable(lua_State* L) {
  PlainAttention plain;
  call(L, lua_gettop(L) - 1, LUA_MULTRET);
  return lua_gettop(L);
}

}  // namespace

int open_functorch(lua_State* L) {
  lua_newtable(L);
  register_functions(
      L, "redco.functorch.",
      {{"with_vmap", with_vmap,
        "with_vmap(body, batch_size, randomness) -> what body returns\n"
        "Calls body(level) with a new batch level."},
       {"with_grad", with_grad,
        "with_grad(body) -> what body returns\nCalls body(level) with a new gradient level."},
       {"twice_differentiable", twice_differentiable,
        "twice_differentiable(f, ...) -> what f returns\n"
        "Calls f(...) with operators whose gradients can be differentiated again."},
       {"in_transform", in_transform,
        "in_transform() -> boolean\n"
        "Returns true inside the function given to vmap or grad on levels."},
       {"wrap_batch", wrap_batch,
        "wrap_batch(tensor, dim, level) -> Tensor\n"
        "Makes dimension `dim` the batch dimension of the level."},
       {"unwrap_batch", unwrap_batch,
        "unwrap_batch(tensor, out_dim, level, batch_size) -> Tensor\n"
        "Makes the batch dimension of the level dimension `out_dim`."},
       {"wrap_grad", wrap_grad,
        "wrap_grad(tensor, level) -> Tensor\n"
        "Returns a tensor whose history is recorded on the level."},
       {"unwrap_grad", unwrap_grad,
        "unwrap_grad(tensor, level) -> Tensor\n"
        "Returns the tensor without the history of the level."}});
  return 1;
}

}  // namespace redco::lua
