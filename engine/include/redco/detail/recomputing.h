#pragma once

#include <redco/export.h>

#include <c10/core/AutogradState.h>

namespace redco {

/// While it exists, this thread's computation counts as recomputation, as when backward reruns a
/// function whose results were not kept. It is not counted as work of the model.
class REDCO_API Recomputing {
 public:
  Recomputing();
  ~Recomputing();
  Recomputing(const Recomputing&) = delete;
  Recomputing& operator=(const Recomputing&) = delete;

 private:
  bool outer_;
};

/// While it exists, backward passes that this thread starts run on this thread, on GPUs too, where
/// LibTorch otherwise uses a thread per GPU. A function that is rerun there may be a script's,
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
