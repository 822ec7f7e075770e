// Converts values between Lua and C++.

#pragma once

#include <redco/tree.h>

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/core/Scalar.h>
#include <c10/core/ScalarType.h>

#include <lua.hpp>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>

namespace redco::lua {

/// `lua_type` of LuaJIT's cdata: LUA_TCDATA, which its headers keep private.
constexpr int type_cdata = 10;

/// Describes the value at `index` for an error message: `float32[2, 3]`, `number 2.5`, `"text"`,
/// `table`.
std::string describe(lua_State* L, int index);
std::string describe(const at::Tensor& tensor);

/// The same for `require`: the description is made only if the check fails.
struct Described {
  lua_State* L;
  int index;
  const at::Tensor* tensor;

  friend std::ostream& operator<<(std::ostream& stream, const Described& what) {
    return stream << (what.tensor ? describe(*what.tensor) : describe(what.L, what.index));
  }
};
inline Described described(lua_State* L, int index) { return {L, index, nullptr}; }
inline Described described(const at::Tensor& tensor) { return {nullptr, 0, &tensor}; }

/// Reads an integer. A Lua number is a double; one with an integral value of at most 2^53 counts as
/// an integer. Larger int64 values are LuaJIT's `1LL` cdata, so none is ever rounded.
std::optional<int64_t> test_integer(lua_State* L, int index);
int64_t check_integer(lua_State* L, int index, const char* what);
void push_integer(lua_State* L, int64_t value);

/// Reads a number, boolean or int64 cdata as a Scalar. An integral number becomes an integer.
std::optional<c10::Scalar> test_scalar(lua_State* L, int index);
void push_scalar(lua_State* L, const c10::Scalar& value);

/// Pushes a string, which may hold any bytes.
inline void push_string(lua_State* L, std::string_view text) {
  lua_pushlstring(L, text.data(), text.size());
}

/// Element types by PyTorch's names: "float32", "int64", "bool", ... ("float", "half", "double",
/// "long", "int" are accepted too).
std::optional<c10::ScalarType> parse_dtype(const std::string& name);
/// "\"flot32\" is not a dtype; did you mean \"float32\"?".
std::string unknown_dtype(const std::string& name);
const char* dtype_name(c10::ScalarType dtype);
c10::ScalarType check_dtype(lua_State* L, int index);

/// "cpu", "cuda", "cuda:1", "meta".
std::optional<c10::Device> parse_device(const std::string& name);

/// Converts a Lua value to a tree: tables with consecutive integer keys become lists, tables with
/// string keys dictionaries. Leaves other than tensors, numbers, strings and booleans raise an
/// error that names their path in `what`.
Tree check_tree(lua_State* L, int index, const char* what = "a tree");
void push_tree(lua_State* L, const Tree& tree);

/// Prepares the state for int64 cdata, which `push_integer` and `test_integer` use.
void open_values(lua_State* L);

}  // namespace redco::lua
