#pragma once

#include <ATen/core/ivalue.h>

#include <string>

namespace c10 {
struct FunctionSchema;
}

namespace redco::lua {

/// Looks at the arguments of an operator's call before it is made; throws Error where its kernel
/// for CPUs would read or write outside of a tensor.
using Check = void (*)(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments);

/// The check of an operator, `aten::NAME`, or null: operator_checks.cpp has the table.
Check find_check(const std::string& name);

/// Whether Lua does not have an operator, because nothing that it could be given is checked.
bool is_withheld(const std::string& name);

}  // namespace redco::lua
