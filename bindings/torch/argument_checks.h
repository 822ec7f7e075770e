#pragma once

#include <ATen/core/ivalue.h>

#include <string>

namespace c10 {
struct FunctionSchema;
}

namespace redco::lua {

/// Checks the arguments of an operator before the call. Throws Error if its CPU kernel would read
/// or write outside a tensor, or not return.
using Check = void (*)(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments);

/// Returns the check of an operator, `aten::NAME`, or null; argument_checks.cpp has the table.
Check find_check(const std::string& name);

/// Returns whether an operator is not offered to Lua because its arguments cannot be checked.
bool is_withheld(const std::string& name);

}  // namespace redco::lua
