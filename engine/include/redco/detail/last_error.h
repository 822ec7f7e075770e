#pragma once

#include <cerrno>
#include <cstring>
#include <ostream>

namespace redco {

/// Prints the cause of the last failed system call, as an argument of `fail` and `require`. It
/// reads `errno` when the text is made. `std::strerror(errno)` in the same place would be evaluated
/// before a call that is the condition of `require`.
struct LastError {};

inline std::ostream& operator<<(std::ostream& out, LastError) {
  return out << std::strerror(errno);
}

}  // namespace redco
