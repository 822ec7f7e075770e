#pragma once

#include <redco/error.h>

#include <sstream>

namespace redco {

/// Throws UsageError with the concatenated arguments as its text unless `condition` holds.
template <class... Args>
void require_usage(bool condition, const Args&... args) {
  if (condition) return;
  std::ostringstream text;
  (text << ... << args);
  throw UsageError(text.str());
}

}  // namespace redco
