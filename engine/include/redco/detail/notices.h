#pragma once

#include <redco/export.h>

#include <functional>
#include <memory>
#include <string>

namespace redco {

/// The library never prints: the program names a function that shows its notices, which may be
/// called on any thread. Without one they are dropped.
REDCO_API void show_notices(std::function<void(const std::string& text)> show);
REDCO_API void notice(const std::string& text);

/// A wait that a person should know of: after two seconds, and then every ten, a notice says what
/// is awaited. It needs no help of the code that waits, which may be blocked in a system call.
class REDCO_API Waiting {
 public:
  /// `what` follows "waiting for": "process 3".
  explicit Waiting(std::string what);
  ~Waiting();
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  /// Now it is that. The time goes on.
  void change(std::string what);

 private:
  struct State;
  std::shared_ptr<State> state_;  // null: nobody would see it
};

}  // namespace redco
