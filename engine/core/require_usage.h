#pragma once

#include <redco/error.h>

#include <sstream>

namespace redco {

/// UsageError with the arguments streamed one after another, unless `condition` holds.
template <class... Args>
void require_usage(bool condition, const Args&... args) {
  if (condition) return;
  std::ostringstream text;
  (text << ... << args);
  throw UsageError(text.str());
}

}  // namespace redco
