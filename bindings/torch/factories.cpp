// torch.tensor: converts nested Lua tables to tensors.

#include "state/context.h"
#include "state/levels.h"
#include "state/null.h"
#include "state/registry.h"
#include "state/tensor.h"
#include "state/values.h"
#include "torch.h"

#include <redco/error.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace redco::lua {

namespace {

// The type of the elements, in PyTorch's order of promotion.
enum class Element { none, boolean, integer, number };

// The state of a conversion of nested tables to a tensor.
struct Nested {
  std::vector<int64_t> sizes;
  std::vector<int64_t> position;  // from 1, for messages
  std::vector<double> numbers;
  std::vector<int64_t> integers;  // the same as integers, exact where a double is not
  Element element = Element::none;
};

std::string position_text(const std::vector<int64_t>& position) {
  if (position.empty()) return "the value";
  std::string text = "data";
  for (int64_t at : position) text.append("[").append(std::to_string(at)).append("]");
  return text;
}

void take_element(lua_State* L, int index, Nested& nested) {
  Element element;
  double number = 0;
  int64_t integer = 0;
  if (lua_type(L, index) == LUA_TBOOLEAN) {
    element = Element::boolean;
    number = double(integer = lua_toboolean(L, index));
  } else if (auto exact = test_integer(L, index)) {
    element = Element::integer;
    integer = *exact;
    number = double(integer);
  } else {
    if (lua_type(L, index) != LUA_TNUMBER)  // `require` would format its text for every element
      fail("torch.tensor: ", position_text(nested.position), " is ", describe(L, index),
           is_null(L, index) ? "; a tensor has no nulls: replace them before"
                             : "; expected a number, a boolean, a table or a Tensor");
    element = Element::number;
    number = lua_tonumber(L, index);
  }
  nested.element = std::max(nested.element, element);
  nested.numbers.push_back(number);
  nested.integers.push_back(integer);
}

// Raises an error for entries that `#` does not count (named ones, and those after a hole), because
// they would be lost silently.
void check_is_list(lua_State* L, int index, int64_t length, const Nested& nested) {
  int64_t entries = 0;
  for (lua_pushnil(L); lua_next(L, index); lua_pop(L, 1)) ++entries;
  if (entries > length)
    fail("torch.tensor: ", position_text(nested.position), " has ", entries - length,
         " named entries or entries after a hole beside its ", length, "; expected a list");
}

// The first path to a leaf determines the sizes; all others must agree.
void walk(lua_State* L, int index, size_t depth, Nested& nested, bool first) {
  luaL_checkstack(L, 3, "torch.tensor");
  bool is_table = lua_istable(L, index);
  if (first && is_table) {
    require(depth < 64, "torch.tensor: nested more than 64 deep: does a table contain itself?");
    nested.sizes.push_back(int64_t(lua_objlen(L, index)));
  }
  bool should_be_table = depth < nested.sizes.size();
  if (is_table != should_be_table)
    fail("torch.tensor: ragged data: ", position_text(nested.position), " is ", describe(L, index),
         ", but its neighbours are ", should_be_table ? "tables" : "elements");
  if (!is_table) {
    take_element(L, index, nested);
    return;
  }
  auto length = int64_t(lua_objlen(L, index));
  if (length != nested.sizes[depth])
    fail("torch.tensor: ragged data: ", position_text(nested.position), " has ", length,
         " entries, but its neighbours have ", nested.sizes[depth]);
  check_is_list(L, index, length, nested);
  nested.position.push_back(0);
  for (int64_t i = 1; i <= length; ++i) {
    nested.position.back() = i;
    lua_rawgeti(L, index, int(i));
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
          described(L, index));
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
  if (result.numel() == 0) return result;
  if (exact)
    std::memcpy(result.mutable_data_ptr(), nested.integers.data(),
                nested.integers.size() * sizeof(int64_t));
  else
    std::memcpy(result.mutable_data_ptr(), nested.numbers.data(),
                nested.numbers.size() * sizeof(double));
  return result;
}

// The range of an integral type, as far as int64 can represent it.
struct Range {
  c10::ScalarType dtype;
  int64_t smallest;
  int64_t largest;
};

constexpr Range ranges[] = {
    {c10::kByte, 0, 255},         {c10::kChar, -128, 127},
    {c10::kShort, -32768, 32767}, {c10::kInt, INT32_MIN, INT32_MAX},
    {c10::kUInt16, 0, 65535},     {c10::kUInt32, 0, UINT32_MAX},
    {c10::kUInt64, 0, INT64_MAX}, {c10::kLong, INT64_MIN, INT64_MAX},
};

// Raises an error for a number that the integral type cannot represent.
void check_range(const Nested& nested, c10::ScalarType dtype) {
  const Range* range = std::find_if(std::begin(ranges), std::end(ranges),
                                    [&](const Range& entry) { return entry.dtype == dtype; });
  if (range == std::end(ranges)) return;
  bool exact = nested.element != Element::number;
  // Truncation comes first: 255.9 is 255. As doubles the limits are 2^k, hence `<` for the upper.
  double below = double(range->smallest);
  double above = double(range->largest) +
                 (range->largest == INT64_MAX ? 0 : 1);  // INT64_MAX is 2^63 as a double
  for (size_t i = 0; i < nested.numbers.size(); ++i) {
    bool fits = exact
                    ? nested.integers[i] >= range->smallest && nested.integers[i] <= range->largest
                    : std::trunc(nested.numbers[i]) >= below && nested.numbers[i] < above;
    if (fits) continue;
    std::vector<int64_t> position(nested.sizes.size());
    auto rest = int64_t(i);
    for (size_t dim = position.size(); dim-- > 0; rest /= nested.sizes[dim])
      position[dim] = rest % nested.sizes[dim] + 1;
    std::ostringstream value;
    if (exact)
      value << nested.integers[i];
    else
      value << nested.numbers[i];
    fail("torch.tensor: ", position_text(position), " is ", value.str(), ", which ",
         dtype_name(dtype), " cannot hold: it takes ", range->smallest, " to ", range->largest);
  }
}

// A list of tensors of one shape is stacked, for collate functions.
bool is_list_of_tensors(lua_State* L, int index) {
  if (!lua_istable(L, index) || lua_objlen(L, index) == 0) return false;
  lua_rawgeti(L, index, 1);
  bool is_tensor = test_tensor(L, -1) != nullptr;
  lua_pop(L, 1);
  return is_tensor;
}

at::Tensor stack_list(lua_State* L, int index) {
  std::vector<at::Tensor> tensors;
  int length = int(lua_objlen(L, index));
  for (int i = 1; i <= length; ++i) {
    lua_rawgeti(L, index, i);
    at::Tensor* tensor = test_tensor(L, -1);
    require(tensor != nullptr, "torch.tensor: data[", i, "] is ", described(L, -1),
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
  std::optional<OutsideOfLevels> outside_of_levels;
  if (at::Tensor* source = test_tensor(L, 1)) {
    result = source->detach().clone();
    inferred = result.scalar_type();
  } else if (is_list_of_tensors(L, 1)) {
    result = stack_list(L, 1).detach();
    inferred = result.scalar_type();
  } else {
    // Numbers depend on no level of vmap or grad, and their tensor may outlive the level.
    outside_of_levels.emplace();
    Nested nested;
    walk(L, 1, 0, nested, true);
    if (options.dtype) check_range(nested, *options.dtype);
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
        "tensor(data, {dtype = nil, device = nil, requires_grad = nil}) -> Tensor\n"
        "Returns a tensor of a number, a boolean, nested tables of them, or a list of tensors "
        "of one shape. The default dtype is bool if all elements are booleans, int64 if all "
        "numbers are integers (up to 2^53; write 9007199254740993LL beyond), else float32. A "
        "Lua number does not remember whether it was written 1 or 1.0, so data that happens to "
        "be integral needs `dtype = \"float32\"`. Other factories, such as `torch.full`, return "
        "float32 for every number. Ragged tables raise an error with the position."}});
}

}  // namespace redco::lua
