#include "tensor.h"
#include "torch.h"
#include "values.h"

#include <redco/error.h>

#include <ATen/TensorIndexing.h>

#include <cstring>
#include <vector>

namespace redco::lua {

namespace {

using at::indexing::Slice;
using at::indexing::TensorIndex;

// One entry of an index list: an integer; {start, stop, step} with stop excluded, {} for all; a
// tensor; "..." for all dimensions in between; "newaxis".
TensorIndex check_entry(lua_State* L, int index) {
  if (auto integer = test_integer(L, index)) return TensorIndex(*integer);
  if (at::Tensor* tensor = test_tensor(L, index)) return TensorIndex(*tensor);
  if (lua_type(L, index) == LUA_TSTRING) {
    std::string name = lua_tostring(L, index);
    if (name == "...") return TensorIndex("...");
    if (name == "newaxis") return TensorIndex(at::indexing::None);
  }
  if (lua_istable(L, index)) {
    size_t length = lua_objlen(L, index);
    require(length <= 3, "index: a slice is {start, stop, step}, got a table of ", length,
            " entries");
    std::optional<int64_t> bounds[3];
    for (int i = 0; i < static_cast<int>(length); ++i) {
      lua_rawgeti(L, index, i + 1);
      bounds[i] = check_integer(L, lua_gettop(L), "index: a slice's start, stop or step");
      lua_pop(L, 1);
    }
    require(!bounds[2] || *bounds[2] > 0, "index: a slice's step must be positive, got ",
            bounds[2].value_or(0));
    std::optional<c10::SymInt> symbolic[3];
    for (int i = 0; i < 3; ++i)
      if (bounds[i]) symbolic[i] = c10::SymInt(*bounds[i]);
    return Slice(symbolic[0], symbolic[1], symbolic[2]);
  }
  fail(
      "index: expected an integer, a slice {start, stop, step}, a tensor, \"...\" or \"newaxis\"; "
      "got ",
      describe(L, index));
}

std::vector<TensorIndex> check_indices(lua_State* L, int index) {
  if (!lua_istable(L, index)) return {check_entry(L, index)};
  std::vector<TensorIndex> indices;
  int length = static_cast<int>(lua_objlen(L, index));
  for (int i = 1; i <= length; ++i) {
    lua_rawgeti(L, index, i);
    indices.push_back(check_entry(L, lua_gettop(L)));
    lua_pop(L, 1);
  }
  return indices;
}

}  // namespace

int index_tensor(lua_State* L) {
  const at::Tensor& self = check_tensor(L, 1);
  if (auto position = test_integer(L, 2)) {
    require(self.dim() > 0, "index ", *position, ": the tensor has no dimensions");
    int64_t size = self.size(0);
    require(*position >= -size && *position < size, "index ", *position,
            " is out of range for dimension 0 with size ", size, "; indices count from 0");
    push_tensor(L, self.select(0, *position), 0);
    return 1;
  }
  push_tensor(L, self.index(check_indices(L, 2)));
  return 1;
}

int assign_tensor(lua_State* L) {
  at::Tensor& self = check_tensor(L, 1);
  if (lua_type(L, 2) == LUA_TSTRING) {
    std::string name = lua_tostring(L, 2);
    if (name == "grad") {
      if (lua_isnil(L, 3))
        self.mutable_grad().reset();
      else
        self.mutable_grad() = check_tensor(L, 3);
      return 0;
    }
    require(name == "...", "a Tensor has no assignable field '", name, "': only `grad` is one");
  }
  std::vector<TensorIndex> indices = check_indices(L, 2);
  if (at::Tensor* value = test_tensor(L, 3)) {
    self.index_put_(indices, *value);
    return 0;
  }
  auto number = test_scalar(L, 3);
  require(number.has_value(), "Tensor index assignment: expected a Tensor or a number, got ",
          describe(L, 3));
  self.index_put_(indices, *number);
  return 0;
}

}  // namespace redco::lua
