// The module redco.torch.native, and the types of tensors and shapes.

#include "torch.h"

#include "operators.h"
#include "sharding.h"
#include "state/context.h"
#include "state/habits.h"
#include "state/registry.h"
#include "state/tensor.h"
#include "state/values.h"

#include <redco/error.h>

#include <ATen/Parallel.h>

#include <algorithm>

namespace redco::lua {

namespace {

// Operators become Lua functions at their first use: 1,500 closures made at start-up would be
// walked by every cycle of the collector.

// Suggests the nearest of the operators and of the names in `tables` on the stack.
[[noreturn]] void fail_unknown(lua_State* L, const char* owner, const std::string& name,
                               std::initializer_list<int> tables) {
  std::vector<std::string> known = operator_names();
  for (int table : tables)
    for (lua_pushnil(L); lua_next(L, table) != 0; lua_pop(L, 1))
      if (lua_type(L, -2) == LUA_TSTRING) known.emplace_back(lua_tostring(L, -2));
  std::string advice = advice_on_field(name), near = nearest(name, known);
  if (advice.empty() && !near.empty()) advice = "; did you mean '" + near + "'?";
  fail(owner, " has no '", name, "'", advice);
}

int torch_index(lua_State* L) {
  if (lua_type(L, 2) != LUA_TSTRING) return 0;
  std::string name = lua_tostring(L, 2);
  if (!push_operator(L, name, false)) fail_unknown(L, "torch", name, {1});
  lua_pushvalue(L, 2);
  lua_pushvalue(L, -2);
  lua_rawset(L, 1);
  return 1;
}

// Looks up a method at its first use on any tensor.
int method_index(lua_State* L) {
  if (lua_type(L, 2) != LUA_TSTRING || !push_operator(L, lua_tostring(L, 2), true)) return 0;
  lua_pushvalue(L, 2);
  lua_pushvalue(L, -2);
  lua_rawset(L, 1);
  return 1;
}

// Upvalues: properties, methods.
int tensor_index(lua_State* L) {
  if (lua_type(L, 2) != LUA_TSTRING || std::strcmp(lua_tostring(L, 2), "...") == 0)
    return index_tensor(L);
  lua_pushvalue(L, 2);
  lua_rawget(L, lua_upvalueindex(2));
  if (!lua_isnil(L, -1)) return 1;
  lua_pop(L, 1);
  lua_pushvalue(L, 2);
  lua_rawget(L, lua_upvalueindex(1));
  if (!lua_isnil(L, -1)) {
    lua_pushvalue(L, 1);
    lua_call(L, 1, 1);
    return 1;
  }
  lua_pop(L, 1);
  std::string name = lua_tostring(L, 2);
  if (!push_operator(L, name, true))
    fail_unknown(L, "a Tensor", name, {lua_upvalueindex(1), lua_upvalueindex(2)});
  lua_pushvalue(L, 2);
  lua_pushvalue(L, -2);
  lua_rawset(L, lua_upvalueindex(2));
  return 1;
}

int collect_tensor(lua_State* L) {
  if (at::Tensor* tensor = test_tensor(L, 1)) tensor->reset();
  return 0;
}

int size_tostring(lua_State* L) {
  std::string text;
  for (int i = 1; i <= int(lua_objlen(L, 1)); ++i) {
    lua_rawgeti(L, 1, i);
    text += (i > 1 ? ", " : "") + std::string(lua_tostring(L, -1));
    lua_pop(L, 1);
  }
  lua_pushfstring(L, "torch.Size([%s])", text.c_str());
  return 1;
}

int size_equal(lua_State* L) {
  bool same = lua_objlen(L, 1) == lua_objlen(L, 2);
  for (int i = 1; same && i <= int(lua_objlen(L, 1)); ++i) {
    lua_rawgeti(L, 1, i);
    lua_rawgeti(L, 2, i);
    same = lua_equal(L, -1, -2) != 0;
    lua_pop(L, 2);
  }
  lua_pushboolean(L, same);
  return 1;
}

// An index past the end is nil, as in any list. shape[0] is a typical mistake of PyTorch's users.
int size_index(lua_State* L) {
  require(lua_type(L, 2) != LUA_TNUMBER || lua_tonumber(L, 2) >= 1, "a shape is a list, which ",
          "counts from 1, got ", lua_tonumber(L, 2), "; tensor:size(dim) counts dimensions from 0");
  return 0;
}

// Creates the type of shapes: plain lists that can be printed and compared.
void make_size_type(lua_State* L) {
  lua_newtable(L);
  lua_pushcfunction(L, size_tostring);
  lua_setfield(L, -2, "__tostring");
  lua_pushcfunction(L, size_equal);
  lua_setfield(L, -2, "__eq");
  lua_pushcfunction(L, size_index);
  lua_setfield(L, -2, "__index");
  lua_rawseti(L, LUA_REGISTRYINDEX, slot_size_metatable);
}

int shape(lua_State* L) {
  const at::Tensor& self = check_tensor(L, 1);
  lua_createtable(L, int(self.dim()), 0);
  for (int64_t i = 0; i < self.dim(); ++i) {
    push_integer(L, self.size(i));
    lua_rawseti(L, -2, int(i) + 1);
  }
  lua_rawgeti(L, LUA_REGISTRYINDEX, slot_size_metatable);
  lua_setmetatable(L, -2);
  return 1;
}

int dtype(lua_State* L) {
  lua_pushstring(L, dtype_name(check_tensor(L, 1).scalar_type()));
  return 1;
}

int device(lua_State* L) {
  lua_pushstring(L, check_tensor(L, 1).device().str().c_str());
  return 1;
}

int requires_grad(lua_State* L) {
  lua_pushboolean(L, check_tensor(L, 1).requires_grad());
  return 1;
}

int is_leaf(lua_State* L) {
  lua_pushboolean(L, check_tensor(L, 1).is_leaf());
  return 1;
}

int grad_of(lua_State* L) {
  const at::Tensor& self = check_tensor(L, 1);
  // `grad` of any other tensor makes LibTorch warn.
  push_tensor(L, self.is_leaf() || self.retains_grad() ? self.grad() : at::Tensor());
  return 1;
}

int ndim(lua_State* L) {
  push_integer(L, check_tensor(L, 1).dim());
  return 1;
}

int transposed(lua_State* L) {
  push_tensor(L, check_tensor(L, 1).t(), 0);
  return 1;
}

int set_num_threads(lua_State* L) {
  int64_t n = check_integer(L, 1, "torch.set_num_threads");
  require(n > 0 && n < 4096, "torch.set_num_threads: expected 1 to 4095, got ", n);
  at::set_num_threads(int(n));
  return 0;
}

int get_num_threads(lua_State* L) {
  push_integer(L, at::get_num_threads());
  return 1;
}

int operators(lua_State* L) {
  lua_newtable(L);
  int n = 0;
  for (const std::string& name : operator_names()) {
    lua_pushstring(L, name.c_str());
    lua_rawseti(L, -2, ++n);
  }
  return 1;
}

int schemas(lua_State* L) {
  bool is_method = false;
  const OverloadSet* op = lua_type(L, 1) == LUA_TSTRING ? find_operator(lua_tostring(L, 1))
                                                        : test_operator(L, 1, is_method);
  if (op == nullptr) return 0;
  lua_newtable(L);
  int n = 0;
  for (const Overload& overload : op->overloads) {
    if (!overload.callable()) continue;
    lua_pushstring(L, overload.text().c_str());
    lua_rawseti(L, -2, ++n);
  }
  lua_pushstring(L, ((is_method ? "Tensor:" : "torch.") + op->name).c_str());
  return 2;
}

int is_tensor(lua_State* L) {
  lua_pushboolean(L, test_tensor(L, 1) != nullptr);
  return 1;
}

void make_tensor_type(lua_State* L) {
  lua_newtable(L);  // the metatable
  lua_newtable(L);  // properties
  register_functions(
      L, "Tensor.",
      {{"shape", shape, "shape: list of integers\nThe sizes, a new table."},
       {"dtype", dtype, "dtype: string\nThe element type by PyTorch's name, \"float32\"."},
       {"device", device, "device: string\n\"cpu\", \"cuda:0\", \"meta\"."},
       {"requires_grad", requires_grad,
        "requires_grad: boolean\nTrue when gradients flow to or through this tensor."},
       {"is_leaf", is_leaf, "is_leaf: boolean\nTrue for a tensor no recorded operator made."},
       {"grad", grad_of,
        "grad: Tensor or nil\nThe gradient that `backward` added up in this leaf tensor."},
       {"ndim", ndim, "ndim: integer\nThe number of dimensions."},
       {"T", transposed, "T: Tensor\nThe transpose of a tensor of at most two dimensions."}});
  lua_newtable(L);  // methods
  register_value(
      L, "Tensor",
      "Tensor {}\n"
      "An array of numbers on a device, as in PyTorch. Dimensions and indices count from "
      "0: t[0] is the first row, t[{0, {1, 3}}] a range of it, t[mask] the elements "
      "where a boolean tensor is true. Every operator of ATen is a method too: x:sum(0), "
      "x:matmul(y).");
  add_tensor_methods(L);
  add_backward(L);
  add_sharding_methods(L);
  lua_newtable(L);
  lua_pushcfunction(L, method_index);
  lua_setfield(L, -2, "__index");
  lua_setmetatable(L, -2);
  lua_pushvalue(L, -1);
  lua_setfield(L, -4, "methods");
  lua_pushcclosure(L, tensor_index, 2);
  lua_setfield(L, -2, "__index");
  lua_pushcfunction(L, assign_tensor);
  lua_setfield(L, -2, "__newindex");
  lua_pushcfunction(L, collect_tensor);
  lua_setfield(L, -2, "__gc");
  lua_pushliteral(L, "Tensor");
  lua_setfield(L, -2, "__name");
  add_tensor_operators(L);
  lua_rawseti(L, LUA_REGISTRYINDEX, slot_tensor_metatable);
}

}  // namespace

int open_torch(lua_State* L) {
  make_size_type(L);
  make_tensor_type(L);
  make_generator_type(L);
  make_captured_type(L);
  lua_newtable(L);
  register_functions(
      L, "torch.",
      {{"set_num_threads", set_num_threads,
        "set_num_threads(n)\nSets the number of CPU threads that one operator may use."},
       {"get_num_threads", get_num_threads,
        "get_num_threads() -> integer\nThe number of CPU threads that one operator may use."},
       {"is_tensor", is_tensor, "is_tensor(value) -> boolean\nTrue for a Tensor."},
       {"operators", operators,
        "operators() -> list of strings\nThe names of all ATen operators, sorted."},
       {"schemas", schemas,
        "schemas(operator) -> list of strings or nil, full_name\n"
        "The overloads of an ATen operator as LibTorch declares them; it is given by its name or "
        "as the function: torch.schemas(torch.sum)."}});
  add_cuda(L);
  add_backends(L);
  add_generators(L);
  add_factories(L);
  add_autograd(L);
  add_storage(L);
  add_jit(L);
  lua_rawgeti(L, LUA_REGISTRYINDEX, slot_tensor_metatable);
  lua_getfield(L, -1, "methods");
  lua_setfield(L, -3, "Tensor");
  lua_pop(L, 1);
  lua_newtable(L);
  lua_pushcfunction(L, torch_index);
  lua_setfield(L, -2, "__index");
  lua_setmetatable(L, -2);
  return 1;
}

}  // namespace redco::lua
