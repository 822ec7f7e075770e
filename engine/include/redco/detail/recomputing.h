#pragma once

#include <redco/export.h>

#include <c10/core/AutogradState.h>

namespace redco {

/// While it lives, this thread computes what it has computed before, as backward does for a
/// function whose results were not kept: that is no work of the model, and is not counted as its.
class REDCO_API Recomputing {
 public:
  Recomputing();
  ~Recomputing();
  Recomputing(const Recomputing&) = delete;
  Recomputing& operator=(const Recomputing&) = delete;

 private:
  bool outer_;
};

/// While it lives, backward passes that this thread starts run on it, those of GPUs too: LibTorch
/// has a thread of its own for each GPU. A function that is run again there may be a script's,
/// whose Lua state belongs to this thread.
class BackwardOnThisThread {
 public:
  BackwardOnThisThread() { state().set_multithreading_enabled(false); }
  ~BackwardOnThisThread() { state().set_multithreading_enabled(was_); }
  BackwardOnThisThread(const BackwardOnThisThread&) = delete;
  BackwardOnThisThread& operator=(const BackwardOnThisThread&) = delete;

 private:
  static c10::AutogradState& state() { return c10::AutogradState::get_tls_state(); }
  bool was_ = state().get_multithreading_enabled();
};

}  // namespace redco
