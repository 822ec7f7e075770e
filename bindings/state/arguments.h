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

/// The named arguments of a constructor or method, given as a table. Reading an argument marks its
/// name as known; `finish` raises an error for unknown names and suggests the nearest known one. If
/// an argument is missing, the names in the function's help text are known too: a misspelt name is
/// reported before the missing one.
class NamedArguments {
 public:
  /// The table is at `index`; errors name `function`.
  NamedArguments(lua_State* L, int index, std::string function);

  /// Returns the argument as a T: bool, int64_t, double, std::string, c10::ScalarType, Ref (a
  /// function), Tree. Raises an error if it is missing or has another type.
  template <class T>
  T required(const char* name);

  /// Like `required`, but nullopt if it is missing.
  template <class T>
  std::optional<T> optional(const char* name);

  template <class T>
  T get(const char* name, T fallback) {
    return optional<T>(name).value_or(std::move(fallback));
  }

  bool has(const char* name);

  /// Pushes the argument, of any type; nil if it is missing.
  void push(const char* name);

  /// The same, but raises an error if it is missing.
  void push_required(const char* name);

  /// Raises an error with the text `why` for arguments that exist only in other libraries.
  void refuse(std::initializer_list<const char*> names, const std::string& why);

  /// Raises an error for the first unknown name.
  void finish();

  lua_State* state() const { return L_; }
  const std::string& function() const { return function_; }

 private:
  [[noreturn]] void fail_missing(const char* name);
  void check_names(const std::set<std::string>& known);

  lua_State* L_;
  int index_;
  std::string function_;
  std::set<std::string> known_;
};

}  // namespace redco::lua
