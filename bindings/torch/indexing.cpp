// Reads and assigns t[key] for keys other than names.

#include "state/collector.h"
#include "state/context.h"
#include "state/tensor.h"
#include "state/values.h"
#include "torch.h"

#include <redco/error.h>

#include <ATen/TensorIndexing.h>
#include <c10/util/Exception.h>

#include <optional>
#include <string>
#include <vector>

namespace redco::lua {

namespace {

using at::indexing::Slice;
using at::indexing::TensorIndex;

void check_unnamed(lua_State* L, int index, size_t length, const char* what) {
  for (lua_pushnil(L); lua_next(L, index); lua_pop(L, 1)) {
    auto position = test_integer(L, -2);
    if (!position || *position < 1 || *position > int64_t(length))
      fail("index: ", what, " has no entry ", describe(L, -2));
  }
}

// Reads one entry of an index list: an integer; {start, stop, step} with stop excluded, {} for all;
// a tensor; "..." for all dimensions in between; "newaxis".
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
    check_unnamed(L, index, length, "a slice {start, stop, step}");
    require(length <= 3, "index: a slice is {start, stop, step}, got a table of ", length,
            " entries");
    std::optional<int64_t> bounds[3];
    for (int i = 0; i < int(length); ++i) {
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
  int length = int(lua_objlen(L, index));
  check_unnamed(L, index, size_t(length), "an index list");
  for (int i = 1; i <= length; ++i) {
    lua_rawgeti(L, index, i);
    indices.push_back(check_entry(L, lua_gettop(L)));
    lua_pop(L, 1);
  }
  if (indices.empty()) indices.emplace_back("...");
  return indices;
}

[[noreturn]] void fail_range(int64_t position, int64_t dim, const at::Tensor& self) {
  fail("index ", position, " is out of range for dimension ", dim, " of a Tensor ", describe(self),
       "; indices count from 0");
}

bool is_mask(const at::Tensor& index) { return index.scalar_type() == c10::kBool; }

// Returns the number of dimensions that an entry indexes.
int64_t n_dims(const TensorIndex& entry) {
  if (entry.is_integer() || entry.is_slice()) return 1;
  if (entry.is_tensor()) return is_mask(entry.tensor()) ? entry.tensor().dim() : 1;
  return 0;
}

// LibTorch's own errors do not name the shape, and some not the index.
void check_fit(const at::Tensor& self, const std::vector<TensorIndex>& indices) {
  int64_t n_taken = 0;
  int64_t n_ellipses = 0;
  for (const TensorIndex& entry : indices) {
    n_taken += n_dims(entry);
    n_ellipses += entry.is_ellipsis();
  }
  require(n_ellipses <= 1, "index: more than one \"...\" for a Tensor ", described(self));
  require(n_taken <= self.dim(), "index: ", n_taken, " entries for the ", self.dim(),
          " dimensions of a Tensor ", described(self));
  int64_t dim = 0;
  for (const TensorIndex& entry : indices) {
    if (entry.is_ellipsis()) {
      dim += self.dim() - n_taken;
    } else if (entry.is_integer()) {
      int64_t position = entry.integer().expect_int();
      int64_t size = self.size(dim);
      if (position < -size || position >= size) fail_range(position, dim, self);
    } else if (entry.is_tensor()) {
      const at::Tensor& index = entry.tensor();
      c10::ScalarType dtype = index.scalar_type();
      require(dtype == c10::kLong || dtype == c10::kInt || is_mask(index), "index: a Tensor ",
              described(index), " for dimension ", dim, " of a Tensor ", described(self),
              "; expected one of int64, int32 or bool");
      for (int64_t i = 0; is_mask(index) && i < index.dim(); ++i)
        require(index.size(i) == self.size(dim + i), "index: a mask ", described(index),
                " from dimension ", dim, " of a Tensor ", described(self),
                "; the sizes must agree");
    }
    dim += n_dims(entry);
  }
}

// Runs `function`. Adds a description of the indexed tensor to LibTorch's errors.
template <class Function>
auto with_context(const at::Tensor& self, Function function) {
  try {
    return function();
  } catch (const c10::Error& error) {
    fail(text_of(error), "\nindexing a Tensor ", describe(self));
  }
}

void assign_grad(lua_State* L, at::Tensor& self) {
  if (lua_isnil(L, 3)) {
    self.mutable_grad().reset();
    return;
  }
  at::Tensor* grad = test_tensor(L, 3);
  require(grad != nullptr, "Tensor.grad: expected a Tensor or nil, got ", described(L, 3));
  require(grad->sizes() == self.sizes() && grad->scalar_type() == self.scalar_type() &&
              grad->device() == self.device(),
          "Tensor.grad: a gradient ", described(*grad), " for a Tensor ", described(self),
          "; shape, dtype and device must agree");
  self.mutable_grad() = *grad;
}

}  // namespace

int index_tensor(lua_State* L) {
  const at::Tensor& self = check_tensor(L, 1);
  if (auto position = test_integer(L, 2)) {
    require(self.dim() > 0, "index ", *position, ": the tensor has no dimensions");
    int64_t size = self.size(0);
    if (*position < -size || *position >= size) fail_range(*position, 0, self);
    push_tensor(L, self.select(0, *position), 0);
    return 1;
  }
  std::vector<TensorIndex> indices = check_indices(L, 2);
  check_fit(self, indices);
  push_tensor(L, with_context(self, [&] {
                return with_memory_retry(L, [&] { return self.index(indices); });
              }));
  return 1;
}

int assign_tensor(lua_State* L) {
  at::Tensor& self = check_tensor(L, 1);
  if (lua_type(L, 2) == LUA_TSTRING) {
    std::string name = lua_tostring(L, 2);
    if (name == "grad") {
      assign_grad(L, self);
      return 0;
    }
    require(name == "...", "a Tensor has no assignable field '", name, "': only `grad` is one");
  }
  std::vector<TensorIndex> indices = check_indices(L, 2);
  check_fit(self, indices);
  if (at::Tensor* value = test_tensor(L, 3)) {
    with_context(self, [&] { self.index_put_(indices, *value); });
    return 0;
  }
  auto number = test_scalar(L, 3);
  require(number.has_value(), "Tensor index assignment: expected a Tensor or a number, got ",
          described(L, 3));
  with_context(self, [&] { self.index_put_(indices, *number); });
  return 0;
}

}  // namespace redco::lua
