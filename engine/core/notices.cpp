// Notices for the user, such as those about long waits.

#include <redco/detail/notices.h>

#include <redco/detail/thread_without_signals.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace redco {

namespace {

using std::chrono::steady_clock;

constexpr std::chrono::milliseconds first_notice(1500);
constexpr std::chrono::seconds between_notices(10);

// Never destroyed: threads of the library may outlive the end of main.
struct Sink {
  std::mutex mutex;
  std::function<void(const std::string&)> show;
};
Sink& sink() {
  static Sink& made = *new Sink;
  return made;
}

bool is_shown() {
  std::lock_guard lock(sink().mutex);
  return sink().show != nullptr;
}

}  // namespace

void show_notices(std::function<void(const std::string&)> show) {
  std::lock_guard lock(sink().mutex);
  sink().show = std::move(show);
}

void notice(const std::string& text) {
  std::lock_guard lock(sink().mutex);
  if (sink().show) sink().show(text);
}

struct Waiting::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::string what;
  bool is_over = false;
};

Waiting::Waiting(std::string what) {
  if (!is_shown()) return;
  state_ = std::make_shared<State>();
  state_->what = std::move(what);
  thread_without_signals([state = state_] {
    auto from = steady_clock::now(), next = from + first_notice;
    std::unique_lock lock(state->mutex);
    while (!state->changed.wait_until(lock, next, [&] { return state->is_over; })) {
      auto seconds = std::chrono::round<std::chrono::seconds>(steady_clock::now() - from).count();
      notice("still waiting after " + std::to_string(seconds) + " s for " + state->what);
      next += between_notices;
    }
  }).detach();
}

Waiting::~Waiting() {
  if (!state_) return;
  std::lock_guard lock(state_->mutex);
  state_->is_over = true;
  state_->changed.notify_all();
}

void Waiting::change(std::string what) {
  if (!state_) return;
  std::lock_guard lock(state_->mutex);
  state_->what = std::move(what);
}

}  // namespace redco
