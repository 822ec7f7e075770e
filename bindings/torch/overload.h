// Overloads of ATen operators, called with Lua arguments.

#pragma once

#include "argument_checks.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <array>
#include <cstdint>
#include <lua.hpp>
#include <string>
#include <vector>

namespace redco::lua {

/// The type of values that a parameter of an operator takes.
enum class ArgKind : uint8_t {
  tensor,
  tensor_list,
  optional_tensor_list,
  scalar,
  scalar_list,
  integer,
  integer_list,
  number,
  number_list,
  boolean,
  boolean_list,
  string,
  dtype,
  layout,
  memory_format,
  device,
  generator,
  unsupported,  // only its default can be used
};

struct Parameter {
  std::string name;
  ArgKind kind;
  bool optional;    // takes nil
  bool named_only;  // after the `*` of the schema
  bool is_out;
  bool is_written;  // and may be resized
  bool has_default;
  int list_size;  // of a list: a single number is repeated this many times
  c10::IValue default_value;
};

constexpr size_t max_parameters = 48;

/// Where a call finds the value of each parameter of an overload.
struct Binding {
  static constexpr int use_default = 0;
  /// Index on the Lua stack of each parameter's value, or `use_default`.
  std::array<int, max_parameters> slots;
  /// The parameter that takes all positional arguments from its position on as a list, or -1.
  int gathering = -1;
  int n_gathered = 0;
  /// The total cost of conversions; lower is better, negative means no match.
  int cost = -1;
};

/// A named argument: its value is on the Lua stack.
struct NamedArgument {
  const char* name;
  int index;
};

/// The arguments of one call from Lua.
struct Arguments {
  static constexpr int max_named = 32;

  int n_positional;  // stack indices 1..n_positional
  bool is_method;    // argument 1 is the parameter called `self`
  std::array<NamedArgument, max_named> named;
  int n_named = 0;
};

/// One overload of an operator, read from its schema.
class Overload {
 public:
  explicit Overload(const c10::OperatorHandle& handle);

  /// Binds `arguments` to the parameters. With `gather`, trailing numbers or tensors may stand for
  /// a list: `x:view(2, -1)`.
  Binding bind(lua_State* L, const Arguments& arguments, bool gather) const;

  /// Calls the operator and pushes its results; returns how many.
  int call(lua_State* L, const Binding& binding) const;

  /// The schema without its name space: `add.Tensor(Tensor self, ...) -> Tensor`.
  const std::string& text() const { return text_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  bool callable() const { return callable_; }
  /// Whether it creates a tensor of a given dtype and device, so that `requires_grad` applies.
  bool is_factory() const { return is_factory_; }

 private:
  enum class Result : uint8_t { fresh, view, argument, dtype };

  c10::OperatorHandle handle_;
  Check check_;
  std::vector<Parameter> parameters_;
  std::vector<int> positional_;         // parameters that positional arguments fill, in order
  std::vector<int> positional_method_;  // the same with `self` first; empty without a `self`
  std::vector<Result> results_;
  std::vector<int> result_arguments_;  // the parameter that a result is, for Result::argument
  std::string text_;
  bool callable_ = true;
  bool is_factory_ = false;
  bool numbers_are_floats_ = false;
};

}  // namespace redco::lua
