#pragma once

#include <redco/error.h>
#include <redco/export.h>

namespace redco {

/// Asks the running `fit` to end after its step, with a checkpoint: it throws Stopped. Of several
/// processes one that is asked is enough. Safe in a signal handler and on any thread. False where
/// no `fit` runs, which nothing would then end.
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
