#pragma once

// The streams and events of the fake devices.

#include <c10/core/Device.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace fake {

/// Something that happens once.
class Moment {
 public:
  void happen();
  bool has_happened() const;
  void wait() const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool has_happened_ = false;
};
using Event = std::shared_ptr<Moment>;

/// Runs what is queued, in its order, on a thread of its own. Never destroyed.
class Stream {
 public:
  Stream();
  void add(std::function<void()> work);
  Event record();
  void wait_for(Event event) {
    add([event = std::move(event)] { event->wait(); });
  }
  /// Blocks the host; counts that, unless the stream has come to its end.
  void synchronize();

  /// Those of the devices on which operators run.
  static Stream& of(c10::Device device);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
};

/// Blocks the host, as `Stream::synchronize`.
void synchronize(const Event& event);

/// The current device of this thread.
c10::Device current_device();

}  // namespace fake
