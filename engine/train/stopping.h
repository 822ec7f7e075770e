#pragma once

#include <redco/mesh.h>
#include <redco/stop.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

namespace redco {

/// Whether a run shall end before its time: because it was asked to, or because its time is over.
/// All processes come to the same answer at the same step. They agree about once a second, by one
/// number: each step would be slower.
class Stopping {
 public:
  struct Reason {
    int signal = 0;  ///< 0: the time is over
  };

  /// From its making until its end `request_stop` is heard, and `request`, which may be null.
  Stopping(std::shared_ptr<const Mesh> mesh, std::optional<double> max_seconds,
           std::shared_ptr<StopRequest> request);
  ~Stopping();
  Stopping(const Stopping&) = delete;
  Stopping& operator=(const Stopping&) = delete;

  /// What this process was asked to stop by; 0: nothing.
  int signal() const;
  /// To be asked after each step, by all processes.
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

}  // namespace redco
