// Converts values between Lua and C++.

#include "values.h"

#include "null.h"
#include "state/confinement.h"
#include "tensor.h"

#include <redco/detail/cuda.h>
#include <redco/error.h>
#include <redco/sharding.h>

#include <ATen/core/Tensor.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <map>
#include <unordered_map>
#include <vector>

namespace redco::lua {

namespace {

constexpr double largest_exact = 9007199254740992.0;  // 2^53

struct DtypeName {
  const char* name;
  c10::ScalarType dtype;
};

// PyTorch's names; the first name of a type is the one printed.
constexpr DtypeName dtype_names[] = {
    {"float32", c10::kFloat},
    {"float", c10::kFloat},
    {"float64", c10::kDouble},
    {"double", c10::kDouble},
    {"float16", c10::kHalf},
    {"half", c10::kHalf},
    {"bfloat16", c10::kBFloat16},
    {"int64", c10::kLong},
    {"long", c10::kLong},
    {"int32", c10::kInt},
    {"int", c10::kInt},
    {"int16", c10::kShort},
    {"short", c10::kShort},
    {"int8", c10::kChar},
    {"uint8", c10::kByte},
    {"bool", c10::kBool},
    {"complex64", c10::kComplexFloat},
    {"complex128", c10::kComplexDouble},
    {"complex32", c10::kComplexHalf},
    {"uint16", c10::kUInt16},
    {"uint32", c10::kUInt32},
    {"uint64", c10::kUInt64},
    {"float8_e4m3fn", c10::kFloat8_e4m3fn},
    {"float8_e5m2", c10::kFloat8_e5m2},
    {"float8_e4m3fnuz", c10::kFloat8_e4m3fnuz},
    {"float8_e5m2fnuz", c10::kFloat8_e5m2fnuz},
    {"float8_e8m0fnu", c10::kFloat8_e8m0fnu},
};

// 1 for int64_t, 2 for uint64_t, 0 for any other cdata.
int kind_of_cdata(lua_State* L, int index) {
  lua_pushvalue(L, index);
  lua_rawgeti(L, LUA_REGISTRYINDEX, slot_kind_of_cdata);
  lua_insert(L, -2);
  lua_call(L, 1, 1);
  int kind = int(lua_tointeger(L, -1));
  lua_pop(L, 1);
  return kind;
}

std::optional<int64_t> test_int64_cdata(lua_State* L, int index) {
  if (lua_type(L, index) != type_cdata) return std::nullopt;
  int kind = kind_of_cdata(L, index);
  if (kind == 0) return std::nullopt;
  int64_t value;
  std::memcpy(&value, lua_topointer(L, index), sizeof(value));
  if (kind == 2 && value < 0) return std::nullopt;  // a uint64 that does not fit in int64
  return value;
}

// Whether a table is a model of redco.models, whose parameters are in a field.
bool is_model(lua_State* L, int table) {
  lua_pushliteral(L, "loss_fn");
  lua_rawget(L, table);
  lua_pushliteral(L, "params");
  lua_rawget(L, table);
  bool is_one = lua_isfunction(L, -2) && lua_istable(L, -1);
  lua_pop(L, 2);
  return is_one;
}

std::string join(const std::string& path, const std::string& key) {
  return path.empty() ? key : path + "." + key;
}

Tree tree_at(lua_State* L, int index, const char* what, const std::string& path, int depth) {
  require(depth < 200, what, " is nested more than 200 deep at '", path,
          "': does a table contain itself?");
  if (at::Tensor* tensor = test_tensor(L, index)) return *tensor;
  switch (lua_type(L, index)) {
    case LUA_TNIL:
      return {};
    case LUA_TBOOLEAN:
      return Tree(lua_toboolean(L, index) != 0);
    case LUA_TNUMBER:
      if (auto integer = test_integer(L, index)) return Tree(*integer);
      return Tree(double(lua_tonumber(L, index)));
    case LUA_TSTRING: {
      size_t length;
      const char* text = lua_tolstring(L, index, &length);
      return Tree(std::string(text, length));
    }
    case type_cdata:
      if (auto integer = test_int64_cdata(L, index)) return Tree(*integer);
      break;
    case LUA_TLIGHTUSERDATA:
      if (is_null(L, index)) return {};
      break;
    case LUA_TTABLE: {
      luaL_checkstack(L, 4, "a deeply nested tree");
      int table = index < 0 ? lua_gettop(L) + index + 1 : index;
      require(!path.empty() || !is_model(L, table), what,
              ": expected the parameters of a model, model.params, got the model");
      size_t length = lua_objlen(L, table);
      if (length > 0) {
        Tree::List list;
        for (size_t i = 1; i <= length; ++i) {
          lua_rawgeti(L, table, int(i));
          list.push_back(tree_at(L, -1, what, join(path, std::to_string(i)), depth + 1));
          lua_pop(L, 1);
        }
        size_t keys = 0;
        for (lua_pushnil(L); lua_next(L, table); lua_pop(L, 1)) ++keys;
        require(keys == length, "the table at '", path, "' of ", what,
                " has both list entries and named ones: make it one or the other");
        return list;
      }
      Tree::Dict dict;
      for (lua_pushnil(L); lua_next(L, table); lua_pop(L, 1)) {
        require(lua_type(L, -2) == LUA_TSTRING, "the table at '", path, "' of ", what,
                " has a key that is ", described(L, -2), ": keys are strings, or 1 to n");
        std::string key = lua_tostring(L, -2);
        dict.emplace(key, tree_at(L, -1, what, join(path, key), depth + 1));
      }
      return dict;
    }
    default:
      break;
  }
  fail("expected a tensor, number, string, boolean or table at '", path, "' of ", what, ", got ",
       describe(L, index));
}

}  // namespace

std::string describe(const at::Tensor& tensor) {
  if (!tensor.defined()) return "none";
  std::string text = dtype_name(tensor.scalar_type());
  text += "[";
  for (int64_t i = 0; i < tensor.dim(); ++i)
    text += (i > 0 ? ", " : "") + std::to_string(tensor.size(i));
  text += "]";
  if (!tensor.device().is_cpu()) text += " on " + tensor.device().str();
  if (is_sharded(tensor)) text += " " + to_string(placements_of(tensor));
  return text;
}

static std::string describe_entry(lua_State* L) {
  if (lua_istable(L, -1)) return "{...}";
  if (lua_type(L, -1) != LUA_TNUMBER) return describe(L, lua_gettop(L));
  lua_pushvalue(L, -1);  // lua_tostring converts the number in its place
  std::string text = lua_tostring(L, -1);
  lua_pop(L, 1);
  return text;
}

// The first entries of a table: `{2, 1.5}`, `{Tensor float32[2], ...}`, `{hidden = {...}, out =
// {...}}`. Names are sorted, because Lua gives them in an order that differs between processes.
static std::string describe_table(lua_State* L, int index) {
  constexpr size_t most = 4;
  lua_pushvalue(L, index);
  const int table = lua_gettop(L);
  const size_t length = lua_objlen(L, table);
  std::vector<std::string> entries;
  for (size_t i = 1; i <= std::min(length, most); ++i, lua_pop(L, 1)) {
    lua_rawgeti(L, table, int(i));
    entries.push_back(describe_entry(L));
  }
  std::map<std::string, std::string> named;  // the first of them
  size_t n = 0;
  for (lua_pushnil(L); lua_next(L, table); lua_pop(L, 1)) {
    ++n;
    if (lua_type(L, -2) != LUA_TSTRING) continue;
    std::string name = lua_tostring(L, -2);
    if (named.size() == most && name > named.rbegin()->first) continue;
    named[name] = describe_entry(L);
    if (named.size() > most) named.erase(std::prev(named.end()));
  }
  lua_pop(L, 1);
  for (const auto& [name, value] : named)
    if (entries.size() < most) entries.push_back(name + " = " + value);
  if (n > entries.size()) entries.emplace_back("...");
  return "{" + c10::Join(", ", entries) + "}";
}

std::string describe(lua_State* L, int index) {
  if (at::Tensor* tensor = test_tensor(L, index)) return "Tensor " + describe(*tensor);
  if (test_generator(L, index)) return "Generator";
  if (is_null(L, index)) return "redco.null";
  switch (lua_type(L, index)) {
    case LUA_TNONE:
      return "nothing";
    case LUA_TNUMBER: {
      lua_pushvalue(L, index);
      std::string text = std::string("number ") + lua_tostring(L, -1);
      lua_pop(L, 1);
      return text;
    }
    case LUA_TBOOLEAN:
      return lua_toboolean(L, index) ? "true" : "false";
    case LUA_TSTRING: {
      std::string text = lua_tostring(L, index);
      if (text.size() > 40) text = text.substr(0, 37) + "...";
      return '"' + text + '"';
    }
    case LUA_TTABLE:
      return "table " + describe_table(L, index);
    case type_cdata:
      if (auto integer = test_int64_cdata(L, index)) return "int64 " + std::to_string(*integer);
      return "cdata";
    default: {
      bool is_named = luaL_getmetafield(L, index, "__name") != 0;
      std::string text = is_named ? lua_tostring(L, -1) : luaL_typename(L, index);
      lua_pop(L, is_named ? 1 : 0);
      return text;
    }
  }
}

std::optional<int64_t> test_integer(lua_State* L, int index) {
  if (lua_type(L, index) == LUA_TNUMBER) {
    double value = lua_tonumber(L, index);
    if (value == std::floor(value) && std::abs(value) <= largest_exact) return int64_t(value);
    return std::nullopt;
  }
  return test_int64_cdata(L, index);
}

int64_t check_integer(lua_State* L, int index, const char* what) {
  auto value = test_integer(L, index);
  require(value.has_value(), what, ": expected an integer, got ", described(L, index));
  return *value;
}

void push_integer(lua_State* L, int64_t value) {
  if (value >= -int64_t(largest_exact) && value <= int64_t(largest_exact)) {
    lua_pushnumber(L, double(value));
    return;
  }
  lua_rawgeti(L, LUA_REGISTRYINDEX, slot_new_int64);
  lua_call(L, 0, 1);
  std::memcpy(const_cast<void*>(lua_topointer(L, -1)), &value, sizeof(value));
}

std::optional<c10::Scalar> test_scalar(lua_State* L, int index) {
  switch (lua_type(L, index)) {
    case LUA_TNUMBER: {
      double value = lua_tonumber(L, index);
      auto integer = test_integer(L, index);
      if (integer && !(value == 0 && std::signbit(value))) return c10::Scalar(*integer);
      return c10::Scalar(value);
    }
    case LUA_TBOOLEAN:
      return c10::Scalar(lua_toboolean(L, index) != 0);
    case type_cdata:
      if (auto integer = test_int64_cdata(L, index)) return c10::Scalar(*integer);
      return std::nullopt;
    default:
      return std::nullopt;
  }
}

void push_scalar(lua_State* L, const c10::Scalar& value) {
  if (value.isBoolean()) {
    lua_pushboolean(L, value.toBool());
  } else if (value.isIntegral(false)) {
    push_integer(L, value.toLong());
  } else if (value.isComplex()) {
    auto complex = value.toComplexDouble();
    lua_createtable(L, 2, 0);
    lua_pushnumber(L, complex.real());
    lua_rawseti(L, -2, 1);
    lua_pushnumber(L, complex.imag());
    lua_rawseti(L, -2, 2);
  } else {
    lua_pushnumber(L, value.toDouble());
  }
}

std::optional<c10::ScalarType> parse_dtype(const std::string& name) {
  for (const auto& entry : dtype_names)
    if (name == entry.name) return entry.dtype;
  return std::nullopt;
}

std::string unknown_dtype(const std::string& name) {
  std::vector<std::string> known;
  for (const auto& entry : dtype_names) known.emplace_back(entry.name);
  std::string near = nearest(name, known);
  return "\"" + name + "\" is not a dtype; " +
         (near.empty() ? "one is \"float32\"" : "did you mean \"" + near + "\"?");
}

const char* dtype_name(c10::ScalarType dtype) {
  for (const auto& entry : dtype_names)
    if (dtype == entry.dtype) return entry.name;
  return c10::toString(dtype);
}

c10::ScalarType check_dtype(lua_State* L, int index) {
  std::string name = lua_type(L, index) == LUA_TSTRING ? lua_tostring(L, index) : "";
  if (auto dtype = parse_dtype(name)) return *dtype;
  std::string known;
  for (const auto& entry : dtype_names)
    known += (known.empty() ? "" : ", ") + std::string(entry.name);
  fail("dtype: expected one of ", known, "; got ", describe(L, index));
}

std::optional<c10::Device> parse_device(const std::string& name) {
  static const std::unordered_map<std::string, c10::DeviceType> types = {
      {"cpu", c10::kCPU}, {"cuda", c10::kCUDA}, {"meta", c10::kMeta}};
  size_t colon = name.find(':');
  auto type = types.find(name.substr(0, colon));
  if (type == types.end()) return std::nullopt;
  require(Confinement::current() == nullptr || type->second == c10::kCPU, "the device \"", name,
          "\" is not available in a restricted engine, only \"cpu\"");
  if (type->second == c10::kCUDA) load_cuda();
  if (colon == std::string::npos) return c10::Device(type->second);
  std::string number = name.substr(colon + 1);
  if (number.empty() || number.size() > 2 ||
      number.find_first_not_of("0123456789") != std::string::npos)
    return std::nullopt;
  return c10::Device(type->second, static_cast<c10::DeviceIndex>(std::stoi(number)));
}

Tree check_tree(lua_State* L, int index, const char* what) {
  return tree_at(L, index, what, "", 0);
}

void push_tree(lua_State* L, const Tree& tree) {
  luaL_checkstack(L, 4, "a deeply nested tree");
  if (tree.is_tensor()) {
    push_tensor(L, tree.tensor());
  } else if (tree.is<Tree::Dict>()) {
    const auto& dict = tree.as<Tree::Dict>();
    lua_createtable(L, 0, int(dict.size()));
    for (const auto& [key, child] : dict) {
      lua_pushlstring(L, key.data(), key.size());
      push_tree(L, child);
      lua_rawset(L, -3);
    }
  } else if (tree.is<Tree::List>()) {
    const auto& list = tree.as<Tree::List>();
    lua_createtable(L, int(list.size()), 0);
    for (size_t i = 0; i < list.size(); ++i) {
      if (list[i].is_none())
        push_null(L);
      else
        push_tree(L, list[i]);
      lua_rawseti(L, -2, int(i) + 1);
    }
  } else if (tree.is<std::string>()) {
    lua_pushlstring(L, tree.as<std::string>().data(), tree.as<std::string>().size());
  } else if (tree.is<int64_t>()) {
    push_integer(L, tree.as<int64_t>());
  } else if (tree.is<double>()) {
    lua_pushnumber(L, tree.as<double>());
  } else if (tree.is<bool>()) {
    lua_pushboolean(L, tree.as<bool>());
  } else {
    lua_pushnil(L);
  }
}

void open_values(lua_State* L) {
  constexpr const char* code = R"(
    local ffi = require "ffi"
    local int64, uint64 = ffi.typeof("int64_t"), ffi.typeof("uint64_t")
    return function() return int64() end, function(value)
      return ffi.istype(int64, value) and 1 or ffi.istype(uint64, value) and 2 or 0
    end)";
  if (luaL_loadbuffer(L, code, std::strlen(code), "=redco.values") != 0) throw take_error(L);
  call(L, 0, 2);
  lua_rawseti(L, LUA_REGISTRYINDEX, slot_kind_of_cdata);
  lua_rawseti(L, LUA_REGISTRYINDEX, slot_new_int64);
}

}  // namespace redco::lua
