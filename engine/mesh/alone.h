#pragma once

#include <redco/export.h>

#include <functional>
#include <string>

namespace redco::mesh {

/// While it exists, this process works by itself: nothing is logged in the SpmdLog, and whatever
/// needs the other processes throws. May be nested.
class REDCO_API Alone {
 public:
  Alone();
  ~Alone();
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;

  static bool is_on();
  /// Throws Error, which begins with `what()`, if this process works by itself.
  static void refuse(const std::function<std::string()>& what);
};

}  // namespace redco::mesh
