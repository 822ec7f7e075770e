#pragma once

#include <redco/error.h>
#include <redco/export.h>

#include <atomic>

namespace redco {

class Stopping;

/// Asks the `fit`s that were given it to end after their step, with a checkpoint: they throw
/// Stopped. Of several processes one that is asked is enough.
class REDCO_API StopRequest {
 public:
  /// Safe in a signal handler and on any thread. False where no such `fit` runs, which nothing
  /// would then end.
  bool make(int signal) noexcept;

 private:
  friend class Stopping;
  std::atomic<int> n_listening_ = 0;
  std::atomic<int> signal_ = 0;
};

/// The same for whatever `fit` runs in this process.
REDCO_API bool request_stop(int signal) noexcept;

/// A `fit` ended because of `request_stop`: the checkpoint, if there is a work folder, is written.
class REDCO_API Stopped : public Error {
 public:
  Stopped(int signal, const std::string& text) : Error(text), signal_(signal) {}
  int signal() const { return signal_; }

 private:
  int signal_;
};

}  // namespace redco
