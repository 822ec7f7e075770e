#pragma once

#include <redco/mesh.h>
#include <redco/stop.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

namespace redco::train {

/// Decides whether a run ends early, because of a request or a time limit. All processes decide the
/// same at the same step. They agree about once a second with one small all-reduce; doing so at
/// each step would slow training down.
class Stopping {
 public:
  struct Reason {
    int signal = 0;  ///< 0: the time limit
  };

  /// While it exists it listens to `request_stop` and to `request`, which may be null.
  Stopping(std::shared_ptr<const Mesh> mesh, std::optional<double> max_seconds,
           std::shared_ptr<StopRequest> request);
  ~Stopping();
  Stopping(const Stopping&) = delete;
  Stopping& operator=(const Stopping&) = delete;

  /// The signal of a request to this process; 0 if there is none.
  int signal() const;
  /// Must be called after each step by all processes.
  std::optional<Reason> after_step();

 private:
  using Clock = std::chrono::steady_clock;

  std::shared_ptr<const Mesh> mesh_;
  std::optional<double> max_seconds_;
  std::shared_ptr<StopRequest> request_;
  Clock::time_point start_;
  Clock::time_point agreed_;
  int64_t steps_since_ = 0;
  int64_t steps_between_ = 1;
};

}  // namespace redco::train
