#pragma once

#include <string>

namespace redco::lua {

/// Returns whether scripts of a restricted engine may call an operator; allowed_operators.cpp lists
/// them.
bool is_allowed(const std::string& name);

}  // namespace redco::lua
