#pragma once

#include <redco/detail/check_stop.h>
#include <redco/export.h>
#include <redco/mesh.h>
#include <redco/stop.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

namespace redco::train {

/// Decides whether a run ends early, because of a request or a time limit. All processes decide the
/// same at the same place. They agree about once a second with one small all-reduce; doing so at
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

  /// Runs a part of an evaluation and returns false if a request ended it: a `StopCheck` in it has
  /// thrown Stopped. Afterwards all processes know whether there is a request.
  bool run(const std::function<void()>& part);
  /// Why the run ends; none as far as all processes know.
  const std::optional<Reason>& reason() const { return reason_; }

 private:
  friend class StopCheck;
  friend void redco::check_stop();
  using Clock = std::chrono::steady_clock;

  // How often the processes agree in a loop.
  struct Pace {
    Clock::time_point agreed = Clock::now();
    int64_t steps_since = 0;
    int64_t steps_between = 1;
  };
  void agree(Pace& pace);
  void check(Pace& pace);

  std::shared_ptr<const Mesh> mesh_;
  std::optional<double> max_seconds_;
  std::shared_ptr<StopRequest> request_;
  Clock::time_point start_;
  Pace steps_;
  std::optional<Reason> reason_;
  bool was_ended_ = false;  // the running part
};

/// Looks for requests to stop in a loop over batches that all processes run alike. Outside of a
/// part of `Stopping::run` it does nothing.
class REDCO_API StopCheck {
 public:
  StopCheck();
  ~StopCheck();
  StopCheck(const StopCheck&) = delete;
  StopCheck& operator=(const StopCheck&) = delete;

  /// To be called before each batch. Throws Stopped if the run is to end.
  void before_batch();

 private:
  friend void redco::check_stop();
  Stopping* stopping_;
  StopCheck* outer_;
  Stopping::Pace batches_, inside_;
};

}  // namespace redco::train
