// Reads tables of named arguments.

#include "arguments.h"

#include "values.h"

#include <redco/error.h>

namespace redco::lua {

namespace {

[[noreturn]] void fail_type(lua_State* L, int index, const std::string& what,
                            const char* expected) {
  fail(what, ": expected ", expected, ", got ", describe(L, index));
}

// Readers of one value; `what` names it in errors.
void read(lua_State* L, int index, const std::string& what, bool& value) {
  if (lua_type(L, index) != LUA_TBOOLEAN) fail_type(L, index, what, "true or false");
  value = lua_toboolean(L, index);
}

void read(lua_State* L, int index, const std::string& what, int64_t& value) {
  auto integer = test_integer(L, index);
  if (!integer) fail_type(L, index, what, "an integer");
  value = *integer;
}

void read(lua_State* L, int index, const std::string& what, double& value) {
  if (lua_type(L, index) != LUA_TNUMBER) fail_type(L, index, what, "a number");
  value = lua_tonumber(L, index);
}

void read(lua_State* L, int index, const std::string& what, std::string& value) {
  if (lua_type(L, index) != LUA_TSTRING) fail_type(L, index, what, "a string");
  value = lua_tostring(L, index);
}

void read(lua_State* L, int index, const std::string& what, c10::ScalarType& value) {
  auto dtype =
      lua_type(L, index) == LUA_TSTRING ? parse_dtype(lua_tostring(L, index)) : std::nullopt;
  if (!dtype) fail_type(L, index, what, "a dtype such as \"float32\"");
  value = *dtype;
}

bool is_callable(lua_State* L, int index) {
  if (lua_isfunction(L, index)) return true;
  if (!luaL_getmetafield(L, index, "__call")) return false;
  lua_pop(L, 1);
  return true;
}

void read(lua_State* L, int index, const std::string& what, Ref& value) {
  if (!is_callable(L, index)) fail_type(L, index, what, "a function");
  value = Ref(L, index);
}

void read(lua_State* L, int index, const std::string& what, Tree& value) {
  if (!lua_istable(L, index)) fail_type(L, index, what, "a table of tensors");
  value = check_tree(L, index);
}

}  // namespace

NamedArguments::NamedArguments(lua_State* L, int index, std::string function)
    : L_(L), index_(index), function_(std::move(function)) {
  require(lua_istable(L, index), function_, ": expected one table of named arguments, ", function_,
          "{name = value, ...}, got ", described(L, index));
}

void NamedArguments::push(const char* name) {
  known_.insert(name);
  lua_getfield(L_, index_, name);
}

bool NamedArguments::has(const char* name) {
  push(name);
  bool given = !lua_isnil(L_, -1);
  lua_pop(L_, 1);
  return given;
}

template <class T>
std::optional<T> NamedArguments::optional(const char* name) {
  return balanced(L_, [&]() -> std::optional<T> {
    push(name);
    if (lua_isnil(L_, -1)) return std::nullopt;
    T value;
    read(L_, lua_gettop(L_), function_ + ": " + name, value);
    return value;
  });
}

template <class T>
T NamedArguments::required(const char* name) {
  auto value = optional<T>(name);
  require(value.has_value(), function_, ": the argument '", name, "' is missing");
  return std::move(*value);
}

void NamedArguments::refuse(std::initializer_list<const char*> names, const std::string& why) {
  for (const char* name : names) require(!has(name), function_, ": ", name, ": ", why);
}

void NamedArguments::finish() {
  for (lua_pushnil(L_); lua_next(L_, index_); lua_pop(L_, 1)) {
    require(lua_type(L_, -2) == LUA_TSTRING, function_,
            ": the arguments are named, got an entry at ", described(L_, -2));
    std::string key = lua_tostring(L_, -2);
    if (known_.count(key)) continue;
    std::string near = nearest(key, known_);
    std::string all;
    for (const auto& name : known_) all += (all.empty() ? "" : ", ") + name;
    fail(function_, ": there is no argument '", key, "'",
         near.empty() ? "" : "; '" + near + "' is near", "\nthe arguments are: ", all);
  }
}

#define REDCO_ARGUMENT_TYPE(T)                                        \
  template std::optional<T> NamedArguments::optional<T>(const char*); \
  template T NamedArguments::required<T>(const char*);
REDCO_ARGUMENT_TYPE(bool)
REDCO_ARGUMENT_TYPE(int64_t)
REDCO_ARGUMENT_TYPE(double)
REDCO_ARGUMENT_TYPE(std::string)
REDCO_ARGUMENT_TYPE(c10::ScalarType)
REDCO_ARGUMENT_TYPE(Ref)
REDCO_ARGUMENT_TYPE(Tree)
#undef REDCO_ARGUMENT_TYPE

}  // namespace redco::lua
