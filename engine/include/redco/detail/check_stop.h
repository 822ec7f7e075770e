#pragma once

#include <redco/export.h>
#include <redco/stop.h>

#include <memory>

namespace redco {

/// Throws Stopped if this thread runs an evaluation, or a hook after one, of a `fit` that was asked
/// to end. For loops inside of a batch, such as those over tokens. With several processes it looks
/// only inside of a batch, which all of them compute.
REDCO_API void check_stop();

/// While it exists, requests to stop reach it, as they reach a `fit`.
class REDCO_API StopListener {
 public:
  /// `request` may be null; requests to the whole process count, too.
  explicit StopListener(std::shared_ptr<StopRequest> request);
  ~StopListener();
  StopListener(const StopListener&) = delete;
  StopListener& operator=(const StopListener&) = delete;
  /// The signal of the request; 0 if there is none.
  int signal() const;

 private:
  std::unique_ptr<train::Stopping> stopping_;
};

}  // namespace redco
