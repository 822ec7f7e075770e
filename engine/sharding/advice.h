#pragma once

#include <string>

namespace redco {

/// What to do about an operator, "aten::linalg_qr", that had no way to run on parts of its
/// arguments.
std::string advice(const std::string& op);

}  // namespace redco
