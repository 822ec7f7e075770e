#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

namespace redco {

/// Gives up a run that was asked to stop, but whose collate_fn does not return: nothing can end a
/// compiled loop of Lua but the program's end. A thread waits for that.
class CollateWatch {
 public:
  /// `signal` is what asked the run to stop, 0 while nothing has. `give_up` is called on the
  /// thread, while collate_fn runs; should that return meanwhile its caller waits.
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
  std::optional<Clock::time_point> entered_;  // none: not inside
  bool is_over_ = false;
  std::thread thread_;  // none where the program cannot be ended
};

}  // namespace redco
