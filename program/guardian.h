#pragma once

#include <sys/types.h>
#include <string>

namespace redco {

/// Ends what this process has started should this process be killed. A process of its own waits for
/// that. It finds all that has `variable` in its environment with the value `value`: children of
/// children too, and those in a session of their own. To be made before any thread is started.
class Guardian {
 public:
  Guardian();
  /// Nothing is ended: this process does that itself.
  ~Guardian();
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  static constexpr const char* variable = "REDCO_LAUNCH";
  const std::string& value() const { return value_; }

 private:
  std::string value_;
  int to_guardian_ = -1;
  pid_t process_ = 0;
};

}  // namespace redco
