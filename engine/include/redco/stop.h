#pragma once

#include <redco/error.h>
#include <redco/export.h>

#include <atomic>

namespace redco {

namespace train {
class Stopping;
}  // namespace train

/// Requests the `fit` calls that were given it to end after their current step, with a checkpoint:
/// they throw Stopped. With several processes a request on one is enough.
class REDCO_API StopRequest {
 public:
  /// Makes the request. Safe in a signal handler and on any thread. Returns false if no such `fit`
  /// is running, so that the request would end nothing.
  bool make(int signal) noexcept;

 private:
  friend class train::Stopping;
  std::atomic<int> n_listening_ = 0;
  std::atomic<int> signal_ = 0;
};

/// Requests every `fit` that runs in this process to stop.
REDCO_API bool request_stop(int signal) noexcept;

/// A `fit` ended because of `request_stop`. If there is a work folder, the checkpoint is written.
class REDCO_API Stopped : public Error {
 public:
  Stopped(int signal, const std::string& text) : Error(text), signal_(signal) {}
  int signal() const { return signal_; }

 private:
  int signal_;
};

}  // namespace redco
