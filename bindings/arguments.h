#pragma once

#include "context.h"

#include <redco/tree.h>

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <initializer_list>
#include <lua.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace redco::lua {

/// The table of named arguments of a constructor or method. Every argument it is asked for is
/// known from then on; `finish` refuses the rest with the nearest known name.
class NamedArguments {
 public:
  /// The table at `index` of the call of `function`, which errors name.
  NamedArguments(lua_State* L, int index, std::string function);

  /// The argument as a T: bool, int64_t, double, std::string, c10::ScalarType, Ref (a function),
  /// Tree. An error when it is missing or something else.
  template <class T>
  T required(const char* name);

  /// The same, or nothing when it is missing.
  template <class T>
  std::optional<T> optional(const char* name);

  template <class T>
  T get(const char* name, T fallback) {
    return optional<T>(name).value_or(std::move(fallback));
  }

  bool has(const char* name);

  /// Pushes the argument, whatever it is; nil when it is missing.
  void push(const char* name);

  /// Refuses arguments that exist elsewhere: the error says `why`.
  void refuse(std::initializer_list<const char*> names, const std::string& why);

  void finish();

  lua_State* state() const { return L_; }
  const std::string& function() const { return function_; }

 private:
  lua_State* L_;
  int index_;
  std::string function_;
  std::set<std::string> known_;
};

}  // namespace redco::lua
