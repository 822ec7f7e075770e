#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

namespace redco::train {

/// Ends a run that was asked to stop but whose collate_fn does not return: a compiled Lua loop can
/// only be ended along with the program. A thread watches for that.
class CollateWatch {
 public:
  /// `signal` returns the signal that asked the run to stop, or 0. `give_up` is called on the
  /// thread, while collate_fn runs; if collate_fn returns in the meantime, its caller waits.
  CollateWatch(std::function<int()> signal, std::function<void(int signal)> give_up);
  ~CollateWatch();
  CollateWatch(const CollateWatch&) = delete;
  CollateWatch& operator=(const CollateWatch&) = delete;

  class Inside {
   public:
    explicit Inside(CollateWatch& watch) : watch_(watch) { watch_.set_inside(true); }
    ~Inside() { watch_.set_inside(false); }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    CollateWatch& watch_;
  };

 private:
  using Clock = std::chrono::steady_clock;
  void set_inside(bool is_inside);
  void run();

  const std::function<int()> signal_;
  const std::function<void(int)> give_up_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Clock::time_point> entered_;  // none: not in collate_fn
  bool is_over_ = false;
  std::thread thread_;  // none if the program cannot be ended
};

}  // namespace redco::train
