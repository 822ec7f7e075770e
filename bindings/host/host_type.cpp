// Registered C++ classes as Lua types.

#include "host_type.h"

#include "state/context.h"
#include "state/tensor.h"
#include "state/values.h"

#include <redco/detail/article.h>
#include <redco/error.h>

#include <cxxabi.h>

#include <exception>
#include <new>
#include <utility>
#include <vector>

namespace redco {

namespace lua {

namespace {

// A userdata of a registered class holds one of these; its metatable identifies the class.
using Object = std::shared_ptr<void>;

// A registered function: the only upvalue of its Lua function.
struct Bound {
  std::string name;  // for errors: "Camera:shoot"
  host::Function function;
  bool has_self;
};

int call_bound(lua_State* L) {
  const auto& bound = *static_cast<Bound*>(lua_touserdata(L, lua_upvalueindex(1)));
  HostCall call(L, bound.name, bound.has_self);
  call_program(bound.name, [&] { bound.function(call); });
  return call.n_results();
}

template <class T>
int destroy(lua_State* L) {
  static_cast<T*>(lua_touserdata(L, 1))->~T();
  return 0;
}

// Adds a registered function to the table on top of the stack.
void set_bound(lua_State* L, const std::string& key, Bound bound) {
  lua_pushlstring(L, key.data(), key.size());
  lua_newtable(L);
  lua_pushcfunction(L, destroy<Bound>);
  lua_setfield(L, -2, "__gc");
  new (lua_newuserdata(L, sizeof(Bound))) Bound(std::move(bound));
  lua_insert(L, -2);
  lua_setmetatable(L, -2);
  lua_pushcclosure(L, call_bound, 1);
  lua_rawset(L, -3);
}

const std::string& type_name(lua_State* L, std::type_index type) {
  const auto& types = context(L).host_types;
  auto found = types.find(type);
  require(found != types.end(), "the class ", type.name(),
          " is not registered in this engine; call register_type first");
  return found->second;
}

void push_metatable(lua_State* L, const std::string& name) {
  lua_getfield(L, LUA_REGISTRYINDEX, ("redco.host." + name).c_str());
}

[[noreturn]] void fail_unknown(lua_State* L, std::initializer_list<int> tables) {
  const std::string type = lua_tostring(L, lua_upvalueindex(1));
  if (lua_type(L, 2) != LUA_TSTRING) fail(with_article(type), " has no field ", described(L, 2));
  const std::string field = lua_tostring(L, 2);
  std::vector<std::string> known;
  for (int table : tables)
    for (lua_pushnil(L); lua_next(L, table) != 0; lua_pop(L, 1))
      known.emplace_back(lua_tostring(L, -2));
  std::string near = nearest(field, known);
  fail(with_article(type), " has no '", field, "'",
       near.empty() ? "" : "; did you mean '" + near + "'?");
}

// Upvalues of __index and __newindex: the type's name, methods, getters, setters.
int index_object(lua_State* L) {
  lua_settop(L, 2);
  lua_pushvalue(L, 2);
  lua_rawget(L, lua_upvalueindex(2));
  if (!lua_isnil(L, -1)) return 1;
  lua_pushvalue(L, 2);
  lua_rawget(L, lua_upvalueindex(3));
  if (lua_isnil(L, -1)) fail_unknown(L, {lua_upvalueindex(2), lua_upvalueindex(3)});
  lua_pushvalue(L, 1);
  lua_call(L, 1, 1);
  return 1;
}

int assign_field(lua_State* L) {
  lua_settop(L, 3);
  lua_pushvalue(L, 2);
  lua_rawget(L, lua_upvalueindex(4));
  if (lua_isnil(L, -1)) {
    for (int table : {lua_upvalueindex(2), lua_upvalueindex(3)}) {
      lua_pushvalue(L, 2);
      lua_rawget(L, table);
      require(lua_isnil(L, -1), lua_tostring(L, lua_upvalueindex(1)), ".", lua_tostring(L, 2),
              " is read-only");
    }
    fail_unknown(L, {lua_upvalueindex(4)});
  }
  lua_pushvalue(L, 1);
  lua_pushvalue(L, 3);
  lua_call(L, 2, 0);
  return 0;
}

int same_object(lua_State* L) {
  lua_pushboolean(L, *static_cast<Object*>(lua_touserdata(L, 1)) ==
                         *static_cast<Object*>(lua_touserdata(L, 2)));
  return 1;
}

int type_to_string(lua_State* L) {
  lua_pushvalue(L, lua_upvalueindex(1));
  return 1;
}

constexpr const char* tables[] = {"", "methods", "getters", "setters"};  // by host::Member

}  // namespace

void rethrow_known(const std::string& function) {
  // LuaJIT's errors are exceptions without a C++ type, which must propagate.
  if (abi::__cxa_current_exception_type() == nullptr) throw;
  try {
    throw;
  } catch (const std::exception&) {
    throw;
  } catch (...) {
    fail(function, " threw an exception that is not a std::exception");
  }
}

void make_host_type(lua_State* L, const std::string& name, std::type_index type) {
  auto& types = context(L).host_types;
  if (types.contains(type))
    throw UsageError("register_type: '" + name + "': this class is already registered as '" +
                     type_name(L, type) + "'");
  lua_newtable(L);
  int metatable = lua_gettop(L);
  lua_pushlstring(L, name.data(), name.size());
  for (const char* table : {"methods", "getters", "setters"}) {
    lua_newtable(L);
    lua_pushvalue(L, -1);
    lua_setfield(L, metatable, table);
  }
  using Event = std::pair<const char*, lua_CFunction>;
  for (auto [event, function] : {Event("__index", index_object), Event("__newindex", assign_field),
                                 Event("__tostring", type_to_string)}) {
    for (int i = 1; i <= 4; ++i) lua_pushvalue(L, metatable + i);
    lua_pushcclosure(L, function, 4);
    lua_setfield(L, metatable, event);
  }
  lua_pushlstring(L, name.data(), name.size());
  lua_setfield(L, metatable, "__name");
  lua_pushcfunction(L, same_object);
  lua_setfield(L, metatable, "__eq");
  lua_pushcfunction(L, destroy<Object>);
  lua_setfield(L, metatable, "__gc");
  lua_pushboolean(L, 0);
  // Hides __gc from scripts, which would free the object twice.
  lua_setfield(L, metatable, "__metatable");
  lua_settop(L, metatable);
  lua_setfield(L, LUA_REGISTRYINDEX, ("redco.host." + name).c_str());
  types.emplace(type, name);
}

void add_host_member(lua_State* L, std::type_index type, host::Member kind, const std::string& name,
                     host::Function function) {
  const std::string& type_name = lua::type_name(L, type);
  if (kind == host::Member::constructor) {
    lua_pushvalue(L, LUA_GLOBALSINDEX);
    return set_bound(L, type_name, {type_name, std::move(function), false});
  }
  std::string full = type_name + (kind == host::Member::method ? ":" : ".") + name;
  push_metatable(L, type_name);
  int metatable = lua_gettop(L);
  for (int i = 1; i < 4; ++i) {
    lua_getfield(L, metatable, tables[i]);
    lua_getfield(L, -1, name.c_str());
    bool is_pair = i != int(kind) && i != int(host::Member::method) && kind != host::Member::method;
    if (!lua_isnil(L, -1) && !is_pair)
      throw UsageError("register_type: " + full + " is registered twice");
  }
  lua_getfield(L, metatable, tables[int(kind)]);
  set_bound(L, name, {full, std::move(function), true});
}

void add_host_function(lua_State* L, const std::string& name, host::Function function) {
  lua_pushvalue(L, LUA_GLOBALSINDEX);
  set_bound(L, name, {name, std::move(function), false});
}

void push_host_object(lua_State* L, std::shared_ptr<void> object, std::type_index type) {
  if (object == nullptr) return lua_pushnil(L);
  push_metatable(L, type_name(L, type));
  new (lua_newuserdata(L, sizeof(Object))) Object(std::move(object));
  lua_insert(L, -2);
  lua_setmetatable(L, -2);
}

}  // namespace lua

using lua::described;

std::string HostCall::where(int index) const {
  int number = has_self_ ? index - 1 : index;
  return function_ + (number == 0 ? ": self" : ": argument " + std::to_string(number));
}

void HostCall::expect_arguments(int n) const {
  int own = has_self_ ? 1 : 0;
  int given = lua_gettop(L_);
  if (given <= n) return;  // a missing argument raises a type error
  fail(function_, " takes ", n - own, n - own == 1 ? " argument" : " arguments", ", not ",
       given - own);
}

Tree HostCall::tree(int index) const {
  if (lua_isnoneornil(L_, index)) return {};
  return lua::check_tree(L_, index, where(index).c_str());
}

bool HostCall::boolean(int index) const {
  require(lua_isboolean(L_, index), where(index), ": expected a boolean, got ",
          described(L_, index));
  return lua_toboolean(L_, index) != 0;
}

int64_t HostCall::integer(int index, int64_t least, int64_t most) const {
  auto value = lua::test_integer(L_, index);
  require(value.has_value(), where(index), ": expected an integer, got ", described(L_, index));
  require(*value >= least && *value <= most, where(index), ": expected an integer from ", least,
          " to ", most, ", got ", *value);
  return *value;
}

double HostCall::number(int index) const {
  if (auto whole = lua::test_integer(L_, index)) return double(*whole);
  require(lua_type(L_, index) == LUA_TNUMBER, where(index), ": expected a number, got ",
          described(L_, index));
  return lua_tonumber(L_, index);
}

std::string HostCall::text(int index) const {
  require(lua_type(L_, index) == LUA_TSTRING, where(index), ": expected a string, got ",
          described(L_, index));
  size_t size;
  const char* text = lua_tolstring(L_, index, &size);
  return {text, size};
}

at::Tensor HostCall::tensor(int index) const {
  const at::Tensor* tensor = lua::test_tensor(L_, index);
  require(tensor != nullptr, where(index), ": expected a Tensor, got ", described(L_, index));
  return *tensor;
}

std::shared_ptr<void> HostCall::object(int index, std::type_index type) const {
  const std::string& name = lua::type_name(L_, type);
  if (lua_type(L_, index) == LUA_TUSERDATA && lua_getmetatable(L_, index)) {
    lua::push_metatable(L_, name);
    bool same = lua_rawequal(L_, -1, -2);
    lua_pop(L_, 2);
    if (same) return *static_cast<lua::Object*>(lua_touserdata(L_, index));
  }
  bool is_self = has_self_ && index == 1;
  fail(where(index), ": expected ", with_article(name), ", got ", described(L_, index),
       is_self ? "; methods are called with a colon" : "");
}

void HostCall::give(const Tree& result) {
  lua::push_tree(L_, result);
  ++n_results_;
}

void HostCall::give(std::shared_ptr<void> result, std::type_index type) {
  lua::push_host_object(L_, std::move(result), type);
  ++n_results_;
}

}  // namespace redco
