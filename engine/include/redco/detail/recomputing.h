#pragma once

#include <redco/export.h>
#include <redco/recompute.h>

#include <c10/core/AutogradState.h>

#include <cstdint>

namespace redco {

/// While it exists, this thread's computation counts as recomputation, as when backward reruns a
/// function whose results were not kept. It is not counted as work of the model.
class REDCO_API Recomputing {
 public:
  explicit Recomputing(bool is_on = true);
  ~Recomputing();
  Recomputing(const Recomputing&) = delete;
  Recomputing& operator=(const Recomputing&) = delete;

  static bool is_on();

 private:
  bool outer_;
};

/// While it exists, the blocks that this thread's functions mark keep less for backward, which
/// computes the rest again (arXiv 1604.06174).
class REDCO_API RecomputeBlocks {
 public:
  explicit RecomputeBlocks(Recompute how);
  ~RecomputeBlocks();
  RecomputeBlocks(const RecomputeBlocks&) = delete;
  RecomputeBlocks& operator=(const RecomputeBlocks&) = delete;

  static Recompute how();
  /// Called for each block that is marked, whether it is on or not.
  static void count_block();
  static int64_t n_blocks();  ///< that this thread's functions have marked so far

 private:
  Recompute outer_;
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
