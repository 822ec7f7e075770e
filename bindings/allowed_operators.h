#pragma once

#include <string>

namespace redco::lua {

/// Whether scripts of a restricted engine may call an operator: allowed_operators.cpp is the list.
bool is_allowed(const std::string& name);

}  // namespace redco::lua
