#pragma once

#include <sys/types.h>
#include <string>

namespace redco {

/// Kills the processes that this one has started if this one is killed. A separate process waits
/// for that and then kills all processes with `variable` = `value` in their environment, including
/// grandchildren and those in other sessions. Create it before any thread is started.
class Guardian {
 public:
  Guardian();
  /// Ends the guardian without killing: this process ends its children itself.
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
