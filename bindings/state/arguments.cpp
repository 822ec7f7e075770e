// Reads tables of named arguments.

#include "arguments.h"

#include "habits.h"
#include "registry.h"
#include "values.h"

#include <redco/error.h>

#include <cctype>
#include <cstring>

namespace redco::lua {

namespace {

// The names in the braces of a signature, "adamw {learning_rate, b1 = 0.9} -> Optimizer".
std::set<std::string> names_in_signature(const std::string& text) {
  std::set<std::string> names;
  size_t start = text.find('{');
  if (start == std::string::npos || start > text.find('\n')) return names;
  int depth = 0;
  bool may_begin = false;
  for (size_t i = start; i < text.size(); ++i) {
    auto each = static_cast<unsigned char>(text[i]);
    if (std::strchr("{([", each) != nullptr) may_begin = ++depth == 1;
    if (std::strchr("})]", each) != nullptr && --depth == 0) break;
    if (each == ',') may_begin = depth == 1;
    if (!may_begin || std::isalpha(each) == 0) continue;
    size_t end = i;
    while (std::isalnum(static_cast<unsigned char>(text[end])) != 0 || text[end] == '_') ++end;
    names.insert(text.substr(i, end - i));
    may_begin = false;
    i = end - 1;
  }
  return names;
}

// Also finds "learning_rate" for its initials.
std::string nearest_name(const std::string& key, const std::set<std::string>& names) {
  for (const std::string& name : names) {
    std::string initials = name.substr(0, 1);
    for (size_t i = 1; i < name.size(); ++i)
      if (name[i - 1] == '_') initials += name[i];
    if (key.size() > 1 && key == initials) return name;
  }
  return nearest(key, names);
}

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
  if (!dtype && lua_type(L, index) == LUA_TSTRING)
    fail(what, ": ", unknown_dtype(lua_tostring(L, index)));
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

void NamedArguments::push_required(const char* name) {
  push(name);
  if (lua_isnil(L_, -1)) fail_missing(name);
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
  if (!value) fail_missing(name);
  return std::move(*value);
}

void NamedArguments::refuse(std::initializer_list<const char*> names, const std::string& why) {
  for (const char* name : names) {
    lua_getfield(L_, index_, name);
    require(lua_isnil(L_, -1), function_, ": ", name, ": ", why);
    lua_pop(L_, 1);
  }
}

void NamedArguments::fail_missing(const char* name) {
  auto known = names_in_signature(registered_text(L_, function_));
  if (!known.empty()) {
    known.insert(known_.begin(), known_.end());
    check_names(known);
  }
  fail(function_, ": the argument '", name, "' is missing");
}

void NamedArguments::finish() { check_names(known_); }

void NamedArguments::check_names(const std::set<std::string>& known) {
  std::set<std::string> unknown;
  for (lua_pushnil(L_); lua_next(L_, index_); lua_pop(L_, 1)) {
    require(lua_type(L_, -2) == LUA_TSTRING, function_, ": the arguments are named, ", function_,
            "{name = value, ...}; got an entry at ", described(L_, -2));
    std::string key = lua_tostring(L_, -2);
    if (!known.contains(key)) unknown.insert(key);
  }
  if (unknown.empty()) return;
  const std::string& key = *unknown.begin();
  std::string near = nearest_name(key, known);
  std::string all;
  for (const auto& name : known) all += (all.empty() ? "" : ", ") + name;
  std::string advice = advice_on_argument(key, known);
  if (advice.empty() && !near.empty()) advice = "; did you mean '" + near + "'?";
  fail(function_, ": there is no argument '", key, "'", advice, "\nthe arguments are: ", all);
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
