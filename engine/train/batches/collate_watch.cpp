#include "collate_watch.h"

#include <redco/detail/forced_stop.h>
#include <redco/detail/thread_without_signals.h>

#include <algorithm>
#include <utility>

namespace redco::train {

namespace {
constexpr std::chrono::seconds patience(3);
constexpr std::chrono::milliseconds look_around(250);
}  // namespace

CollateWatch::CollateWatch(std::function<int()> signal, std::function<void(int)> give_up)
    : signal_(std::move(signal)), give_up_(std::move(give_up)) {
  if (has_forced_stop()) thread_ = thread_without_signals([this] { run(); });
}

CollateWatch::~CollateWatch() {
  {
    std::lock_guard lock(mutex_);
    is_over_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void CollateWatch::set_inside(bool is_inside) {
  std::lock_guard lock(mutex_);
  entered_ = is_inside ? std::optional(Clock::now()) : std::nullopt;
}

void CollateWatch::run() {
  std::unique_lock lock(mutex_);
  std::optional<Clock::time_point> asked;
  while (!changed_.wait_for(lock, look_around, [this] { return is_over_; })) {
    int signal = signal_();
    if (signal == 0) continue;
    if (!asked) asked = Clock::now();
    if (entered_ && Clock::now() - std::max(*entered_, *asked) > patience) give_up_(signal);
  }
}

}  // namespace redco::train
