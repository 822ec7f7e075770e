#include "context.h"
#include "registry.h"
#include "tensor.h"
#include "torch.h"
#include "values.h"

#include <redco/error.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/stack.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

namespace redco::lua {

namespace {

// What the elements are, in the order in which PyTorch promotes them.
enum class Element { none, boolean, integer, number };

// Nested tables on their way into a tensor.
struct Nested {
  std::vector<int64_t> sizes;
  std::vector<int64_t> position;  // from 1, for messages
  std::vector<double> numbers;
  std::vector<int64_t> integers;  // beside the numbers: exact where a double is not
  Element element = Element::none;
};

std::string text_of(const std::vector<int64_t>& position) {
  std::string text;
  for (int64_t at : position) text += "[" + std::to_string(at) + "]";
  return text.empty() ? "the value" : "data" + text;
}

void take_element(lua_State* L, int index, Nested& nested) {
  Element element;
  double number = 0;
  int64_t integer = 0;
  if (lua_type(L, index) == LUA_TBOOLEAN) {
    element = Element::boolean;
    number = static_cast<double>(integer = lua_toboolean(L, index));
  } else if (auto exact = test_integer(L, index)) {
    element = Element::integer;
    integer = *exact;
    number = static_cast<double>(integer);
  } else {
    require(lua_type(L, index) == LUA_TNUMBER, "torch.tensor: ", text_of(nested.position), " is ",
            describe(L, index), "; expected a number, a boolean, a table or a Tensor");
    element = Element::number;
    number = lua_tonumber(L, index);
  }
  nested.element = std::max(nested.element, element);
  nested.numbers.push_back(number);
  nested.integers.push_back(integer);
}

// The first way down fixes the sizes; every other must agree with it.
void walk(lua_State* L, int index, size_t depth, Nested& nested, bool first) {
  luaL_checkstack(L, 3, "torch.tensor");
  bool is_table = lua_istable(L, index);
  if (first && is_table) {
    require(depth < 64, "torch.tensor: nested more than 64 deep: does a table contain itself?");
    nested.sizes.push_back(static_cast<int64_t>(lua_objlen(L, index)));
  }
  bool should_be_table = depth < nested.sizes.size();
  require(is_table == should_be_table, "torch.tensor: ragged data: ", text_of(nested.position),
          " is ", describe(L, index), ", but its neighbours are ",
          should_be_table ? "tables" : "elements");
  if (!is_table) {
    take_element(L, index, nested);
    return;
  }
  auto length = static_cast<int64_t>(lua_objlen(L, index));
  require(length == nested.sizes[depth], "torch.tensor: ragged data: ", text_of(nested.position),
          " has ", length, " entries, but its neighbours have ", nested.sizes[depth]);
  if (length == 0) {
    lua_pushnil(L);
    require(lua_next(L, index) == 0, "torch.tensor: ", text_of(nested.position),
            " is a table with named entries; expected a list");
  }
  nested.position.push_back(0);
  for (int64_t i = 1; i <= length; ++i) {
    nested.position.back() = i;
    lua_rawgeti(L, index, static_cast<int>(i));
    walk(L, lua_gettop(L), depth + 1, nested, first && i == 1);
    lua_pop(L, 1);
  }
  nested.position.pop_back();
}

struct Options {
  std::optional<c10::ScalarType> dtype;
  c10::Device device = c10::kCPU;
  bool requires_grad = false;
};

Options check_options(lua_State* L, int index) {
  Options options;
  if (lua_isnoneornil(L, index)) return options;
  require(lua_istable(L, index),
          "torch.tensor: expected a table {dtype =, device =, requires_grad =}, got ",
          describe(L, index));
  for (lua_pushnil(L); lua_next(L, index); lua_pop(L, 1)) {
    std::string key = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : "";
    if (key == "dtype") {
      options.dtype = check_dtype(L, lua_gettop(L));
    } else if (key == "device" && lua_isstring(L, -1) && parse_device(lua_tostring(L, -1))) {
      options.device = *parse_device(lua_tostring(L, -1));
    } else if (key == "requires_grad") {
      options.requires_grad = lua_toboolean(L, -1);
    } else {
      fail("torch.tensor: the named arguments are dtype, device and requires_grad; got ",
           key.empty() ? describe(L, -2) : key, " = ", describe(L, -1));
    }
  }
  return options;
}

at::Tensor to_tensor(const Nested& nested) {
  bool exact = nested.element == Element::integer || nested.element == Element::boolean;
  at::Tensor result = at::empty(nested.sizes, exact ? c10::kLong : c10::kDouble);
  if (exact)
    std::memcpy(result.mutable_data_ptr(), nested.integers.data(),
                nested.integers.size() * sizeof(int64_t));
  else
    std::memcpy(result.mutable_data_ptr(), nested.numbers.data(),
                nested.numbers.size() * sizeof(double));
  return result;
}

// A list of tensors of one shape is stacked, as a collate function wants it.
bool is_list_of_tensors(lua_State* L, int index) {
  if (!lua_istable(L, index) || lua_objlen(L, index) == 0) return false;
  lua_rawgeti(L, index, 1);
  bool is_tensor = test_tensor(L, -1) != nullptr;
  lua_pop(L, 1);
  return is_tensor;
}

at::Tensor stack_list(lua_State* L, int index) {
  std::vector<at::Tensor> tensors;
  int length = static_cast<int>(lua_objlen(L, index));
  for (int i = 1; i <= length; ++i) {
    lua_rawgeti(L, index, i);
    at::Tensor* tensor = test_tensor(L, -1);
    require(tensor != nullptr, "torch.tensor: data[", i, "] is ", describe(L, -1),
            ", but its neighbours are tensors");
    require(tensors.empty() || tensor->sizes() == tensors[0].sizes(),
            "torch.tensor: ragged data: data[", i, "] is ", describe(*tensor), ", but data[1] is ",
            tensors.empty() ? "" : describe(tensors[0]));
    tensors.push_back(*tensor);
    lua_pop(L, 1);
  }
  return at::stack(tensors);
}

int tensor(lua_State* L) {
  luaL_checkany(L, 1);
  Options options = check_options(L, 2);
  at::Tensor result;
  c10::ScalarType inferred;
  if (at::Tensor* source = test_tensor(L, 1)) {
    result = source->detach().clone();
    inferred = result.scalar_type();
  } else if (is_list_of_tensors(L, 1)) {
    result = stack_list(L, 1).detach();
    inferred = result.scalar_type();
  } else {
    Nested nested;
    walk(L, 1, 0, nested, true);
    result = to_tensor(nested);
    inferred = nested.element == Element::boolean   ? c10::kBool
               : nested.element == Element::integer ? c10::kLong
                                                    : c10::kFloat;
  }
  result = result.to(options.device, options.dtype.value_or(inferred));
  result.set_requires_grad(options.requires_grad);
  push_tensor(L, result);
  return 1;
}

}  // namespace

void add_factories(lua_State* L) {
  register_functions(
      L, "torch.",
      {{"tensor", tensor,
        "tensor(data, {dtype, device, requires_grad}) -> Tensor\n"
        "A tensor of a number, a boolean, nested tables of them, or a list of tensors of one "
        "shape. The dtype is PyTorch's for such data: bool when all elements are booleans, int64 "
        "when all numbers are integral, else float32. A Lua number does not remember whether it "
        "was written 1 or 1.0, so data that is integral by chance needs `dtype = \"float32\"`. "
        "Filling factories (`torch.full`) give float32 for every number. Ragged tables are "
        "refused with the place."}});
}

}  // namespace redco::lua
