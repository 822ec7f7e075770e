#pragma once

#include <redco/export.h>

#include <functional>
#include <memory>
#include <string>

namespace redco {

/// Sets the function that shows the library's notices; it may be called on any thread. The library
/// never prints: without a function notices are dropped.
REDCO_API void show_notices(std::function<void(const std::string& text)> show);
REDCO_API void notice(const std::string& text);

/// Announces a long wait: after 1.5 seconds, and then every ten, a notice says what is awaited. It
/// does not depend on the waiting code, which may be blocked in a system call.
class REDCO_API Waiting {
 public:
  /// `what` follows "waiting for": "process 3".
  explicit Waiting(std::string what);
  ~Waiting();
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  /// Changes the text; the elapsed time continues.
  void change(std::string what);

 private:
  struct State;
  std::shared_ptr<State> state_;  // null: notices are not shown
};

}  // namespace redco
