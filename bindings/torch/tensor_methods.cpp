// The methods and metamethods of Tensor that are not ATen operators.

#include "operators.h"
#include "sharding.h"
#include "state/collector.h"
#include "state/context.h"
#include "state/levels.h"
#include "state/registry.h"
#include "state/tensor.h"
#include "state/values.h"
#include "torch.h"

#include <redco/error.h>

#include <ATen/core/grad_mode.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/functorch/TensorWrapper.h>
#include <ATen/ops/detach.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/le.h>
#include <ATen/ops/lt.h>

#include <cmath>
#include <optional>

namespace redco::lua {

namespace {

int item(lua_State* L) {
  const at::Tensor& self = check_tensor(L, 1);
  require(self.numel() == 1, "Tensor:item: expected one element, the tensor is ", described(self));
  push_scalar(L, self.item());
  return 1;
}

template <class T, class Push>
void push_nested(lua_State* L, const at::Tensor& tensor, const T* data, int64_t dim,
                 const Push& push) {
  luaL_checkstack(L, 3, "tolist");
  int64_t size = tensor.size(dim);
  int64_t stride = tensor.stride(dim);
  lua_createtable(L, int(size), 0);
  for (int64_t i = 0; i < size; ++i) {
    if (dim + 1 == tensor.dim())
      push(data[i * stride]);
    else
      push_nested(L, tensor, data + i * stride, dim + 1, push);
    lua_rawseti(L, -2, int(i) + 1);
  }
}

template <class T, class Push>
void push_list(lua_State* L, const at::Tensor& tensor, c10::ScalarType dtype, const Push& push) {
  at::Tensor values = readable(tensor, "Tensor:tolist");
  std::optional<OutsideOfLevels> outside_of_levels;
  while (auto* wrapper = at::functorch::maybeGetTensorWrapper(values)) {
    values = wrapper->value();
    if (!at::functorch::isBatchedTensor(values)) outside_of_levels.emplace();
  }
  values = values.detach().resolve_neg().to(c10::kCPU, dtype);
  const T* data = values.const_data_ptr<T>();
  if (values.dim() == 0)
    push(*data);
  else
    push_nested(L, values, data, 0, push);
}

int tolist(lua_State* L) {
  const at::Tensor& self = check_tensor(L, 1);
  require(!self.is_complex(),
          "Tensor:tolist: complex tensors have no list form; use torch.view_as_real");
  if (self.scalar_type() == c10::kBool)
    push_list<bool>(L, self, c10::kBool, [L](bool value) { lua_pushboolean(L, value); });
  else if (self.is_floating_point())
    push_list<double>(L, self, c10::kDouble, [L](double value) { lua_pushnumber(L, value); });
  else
    push_list<int64_t>(L, self, c10::kLong, [L](int64_t value) { push_integer(L, value); });
  return 1;
}

int size(lua_State* L) {
  const at::Tensor& self = check_tensor(L, 1);
  if (lua_isnoneornil(L, 2)) {
    lua_getfield(L, 1, "shape");
    return 1;
  }
  push_integer(L, self.size(check_integer(L, 2, "Tensor:size: dim")));
  return 1;
}

int stride(lua_State* L) {
  const at::Tensor& self = check_tensor(L, 1);
  if (!lua_isnoneornil(L, 2)) {
    push_integer(L, self.stride(check_integer(L, 2, "Tensor:stride: dim")));
    return 1;
  }
  lua_createtable(L, int(self.dim()), 0);
  for (int64_t i = 0; i < self.dim(); ++i) {
    push_integer(L, self.stride(i));
    lua_rawseti(L, -2, int(i) + 1);
  }
  return 1;
}

int dim(lua_State* L) {
  push_integer(L, check_tensor(L, 1).dim());
  return 1;
}

int numel(lua_State* L) {
  push_integer(L, check_tensor(L, 1).numel());
  return 1;
}

int nbytes(lua_State* L) {
  const at::Tensor& self = check_tensor(L, 1);
  push_integer(L, self.numel() * int64_t(self.element_size()));
  return 1;
}

int is_contiguous(lua_State* L) {
  lua_pushboolean(L, check_tensor(L, 1).is_contiguous());
  return 1;
}

// x:to("float32"), x:to("cuda:0"), x:to(other), x:to({dtype =, device =, copy =})
int to(lua_State* L) {
  const at::Tensor& self = check_tensor(L, 1);
  c10::ScalarType dtype = self.scalar_type();
  c10::Device device = self.device();
  bool copy = false;
  bool non_blocking = false;
  for (int i = 2; i <= lua_gettop(L); ++i) {
    if (at::Tensor* other = test_tensor(L, i)) {
      dtype = other->scalar_type();
      device = other->device();
    } else if (lua_istable(L, i)) {
      for (lua_pushnil(L); lua_next(L, i); lua_pop(L, 1)) {
        std::string key = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : "";
        if (key == "dtype") {
          dtype = check_dtype(L, lua_gettop(L));
        } else if (key == "device" && lua_isstring(L, -1) && parse_device(lua_tostring(L, -1))) {
          device = *parse_device(lua_tostring(L, -1));
        } else if (key == "copy") {
          copy = lua_toboolean(L, -1);
        } else if (key == "non_blocking") {
          non_blocking = lua_toboolean(L, -1);
        } else {
          fail("Tensor:to: the named arguments are dtype, device, copy and non_blocking; got ",
               key.empty() ? describe(L, -2) : key, " = ", describe(L, -1));
        }
      }
    } else {
      std::string name = lua_type(L, i) == LUA_TSTRING ? lua_tostring(L, i) : "";
      if (auto parsed = parse_dtype(name))
        dtype = *parsed;
      else if (auto place = parse_device(name))
        device = *place;
      else
        fail("Tensor:to: expected a dtype (\"float32\"), a device (\"cpu\", \"cuda\", ",
             "\"cuda:1\") or a Tensor; ",
             name.empty() ? "got " + describe(L, i) : unknown_dtype(name));
    }
  }
  push_tensor(L, with_memory_retry(L, [&] { return self.to(device, dtype, non_blocking, copy); }));
  return 1;
}

constexpr char cpu_device[] = "cpu";
constexpr char cuda_device[] = "cuda";

template <const char* device>
int move(lua_State* L) {
  c10::Device to = *parse_device(device);
  push_tensor(L, with_memory_retry(L, [&] { return check_tensor(L, 1).to(to); }));
  return 1;
}

template <c10::ScalarType dtype>
int cast(lua_State* L) {
  push_tensor(L, with_memory_retry(L, [&] { return check_tensor(L, 1).to(dtype); }));
  return 1;
}

int address(lua_State* L) {
  at::Tensor self = readable(check_tensor(L, 1), "Tensor:data_ptr");
  require(
      self.device().is_cpu() && self.is_contiguous(),
      "Tensor:data_ptr: expected a contiguous tensor on the CPU; call :cpu():contiguous() first");
  lua_pushlightuserdata(L, self.mutable_data_ptr());
  return 1;
}

int requires_grad_(lua_State* L) {
  at::Tensor& self = check_tensor(L, 1);
  bool wanted = lua_isnoneornil(L, 2) || lua_toboolean(L, 2);
  require(wanted || self.is_leaf(), "Tensor:requires_grad_: a Tensor ", described(self),
          " that operators made has a history; use :detach() for one without");
  self.set_requires_grad(wanted);
  lua_settop(L, 1);
  return 1;
}

int detach(lua_State* L) {
  push_tensor(L, check_tensor(L, 1).detach(), 0);
  return 1;
}

// `reversed` takes its arguments in reverse order, for a number as the left operand.
template <const char* name, const char* reversed>
int arithmetic(lua_State* L) {
  static const OverloadSet* const forward = find_operator(name);
  static const OverloadSet* const backward = find_operator(reversed);
  lua_settop(L, 2);
  if (test_tensor(L, 1) != nullptr) return call_operator(L, *forward, false);
  lua_insert(L, 1);
  return call_operator(L, *backward, false);
}

constexpr char add[] = "add", sub[] = "sub", rsub[] = "rsub", mul[] = "mul";

template <const char* name>
int same_order(lua_State* L) {
  static const OverloadSet* const op = find_operator(name);
  lua_settop(L, 2);
  return call_operator(L, *op, false);
}

constexpr char pow_name[] = "pow", remainder_name[] = "remainder", div_name[] = "div";

int divide(lua_State* L) {
  lua_settop(L, 2);
  if (test_tensor(L, 1) == nullptr) {
    if (auto number = test_scalar(L, 1)) {
      push_tensor(L, check_tensor(L, 2).reciprocal().mul(*number));
      return 1;
    }
  }
  return same_order<div_name>(L);
}

int negate(lua_State* L) {
  push_tensor(L, check_tensor(L, 1).neg());
  return 1;
}

// Lua converts the result of a comparison to a boolean, so only single elements can be compared.
// LuaJIT compares only two tensors: for a tensor and a number it raises an error before it looks
// for `__lt`.
const at::Tensor& comparable(lua_State* L, int index, const char* sign) {
  at::Tensor* tensor = test_tensor(L, index);
  require(tensor != nullptr, "`", sign, "`: expected a Tensor, got ", described(L, index));
  require(tensor->numel() == 1, "`", sign, "` compares single elements, the tensor is ",
          described(*tensor), "; element by element: torch.lt, le, gt, ge, eq, ne");
  return *tensor;
}

int less(lua_State* L) {
  lua_pushboolean(L, at::lt(comparable(L, 1, "<"), comparable(L, 2, "<")).item<bool>());
  return 1;
}

int less_equal(lua_State* L) {
  lua_pushboolean(L, at::le(comparable(L, 1, "<="), comparable(L, 2, "<=")).item<bool>());
  return 1;
}

int equal(lua_State* L) {
  const at::Tensor& a = check_tensor(L, 1);
  const at::Tensor& b = check_tensor(L, 2);
  lua_pushboolean(L,
                  a.is_same(b) || (a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
                                   a.device() == b.device() && at::equal(a, b)));
  return 1;
}

int length(lua_State* L) {
  const at::Tensor& self = check_tensor(L, 1);
  require(self.dim() > 0, "#: a tensor with no dimensions has no length");
  push_integer(L, self.size(0));
  return 1;
}

int tostring(lua_State* L) {
  std::string text = format_tensor(check_tensor(L, 1));
  lua_pushlstring(L, text.data(), text.size());
  return 1;
}

int concat(lua_State* L) {
  for (int i = 1; i <= 2; ++i) {
    std::string text;
    if (at::Tensor* tensor = test_tensor(L, i)) {
      text = format_tensor(*tensor);
    } else {
      require(lua_isstring(L, i), "..: cannot join a Tensor and ", described(L, i));
      text = lua_tostring(L, i);
    }
    lua_pushlstring(L, text.data(), text.size());
  }
  lua_concat(L, 2);
  return 1;
}

void set_metamethods(lua_State* L,
                     std::initializer_list<std::pair<const char*, lua_CFunction>> entries) {
  for (const auto& [name, function] : entries) {
    lua_pushcfunction(L, function);
    lua_setfield(L, -2, name);
  }
}

}  // namespace

void add_tensor_methods(lua_State* L) {
  register_functions(
      L, "Tensor:",
      {{"item", item,
        "item(self) -> number or boolean or int64\n"
        "Returns the only element. int64 values beyond 2^53 become LuaJIT's 64-bit integers."},
       {"tolist", tolist,
        "tolist(self) -> nested tables\n"
        "Returns the elements; a number for a tensor without dimensions. int64 values beyond "
        "2^53 become LuaJIT's 64-bit integers."},
       {"size", size,
        "size(self, dim = nil) -> integer or list of integers\n"
        "Returns the size of a dimension (from 0); without `dim`, the shape."},
       {"stride", stride,
        "stride(self, dim = nil) -> integer or list of integers\n"
        "Returns the stride of a dimension; without `dim`, a list of all strides."},
       {"dim", dim,
        "dim(self) -> integer\n"
        "Returns the number of dimensions."},
       {"numel", numel,
        "numel(self) -> integer\n"
        "Returns the number of elements."},
       {"nbytes", nbytes,
        "nbytes(self) -> integer\n"
        "Returns the number of bytes of the elements."},
       {"is_contiguous", is_contiguous,
        "is_contiguous(self) -> boolean\n"
        "Returns true if the elements are in row-major order."},
       {"to", to,
        "to(self, dtype_or_device_or_tensor = nil, {dtype = nil, device = nil, copy = nil, "
        "non_blocking = nil}) -> "
        "Tensor\n"
        "Converts the tensor to another dtype or moves it to another device; returns the tensor "
        "itself if nothing changes."},
       {"cpu", move<cpu_device>,
        "cpu(self) -> Tensor\n"
        "Copies the tensor to CPU memory; returns the tensor itself if it is there."},
       {"cuda", move<cuda_device>,
        "cuda(self) -> Tensor\n"
        "Copies the tensor to the GPU; returns the tensor itself if it is there."},
       {"float", cast<c10::kFloat>,
        "float(self) -> Tensor\n"
        "Converts to float32."},
       {"double", cast<c10::kDouble>,
        "double(self) -> Tensor\n"
        "Converts to float64."},
       {"half", cast<c10::kHalf>,
        "half(self) -> Tensor\n"
        "Converts to float16."},
       {"bfloat16", cast<c10::kBFloat16>,
        "bfloat16(self) -> Tensor\n"
        "Converts to bfloat16."},
       {"long", cast<c10::kLong>,
        "long(self) -> Tensor\n"
        "Converts to int64."},
       {"int", cast<c10::kInt>,
        "int(self) -> Tensor\n"
        "Converts to int32."},
       {"bool", cast<c10::kBool>,
        "bool(self) -> Tensor\n"
        "Converts to bool: true for elements that are not zero."},
       {"address", address,
        "address(self) -> light userdata\n"
        "Returns the address of the elements of a contiguous CPU tensor; `data_ptr` adds the C "
        "type."},
       {"requires_grad_", requires_grad_,
        "requires_grad_(self, requires_grad = true) -> self\n"
        "Sets whether operators on this leaf tensor are recorded for gradients."},
       {"detach", detach,
        "detach(self) -> Tensor\n"
        "Returns the same elements without the recorded history."}});
}

void add_tensor_operators(lua_State* L) {
  set_metamethods(L, {{"__add", arithmetic<add, add>},
                      {"__sub", arithmetic<sub, rsub>},
                      {"__mul", arithmetic<mul, mul>},
                      {"__div", divide},
                      {"__mod", same_order<remainder_name>},
                      {"__pow", same_order<pow_name>},
                      {"__unm", negate},
                      {"__lt", less},
                      {"__le", less_equal},
                      {"__eq", equal},
                      {"__len", length},
                      {"__tostring", tostring},
                      {"__concat", concat}});
}

}  // namespace redco::lua
