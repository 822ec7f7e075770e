#pragma once

#include "limited_memory.h"
#include "state/context.h"

#include <redco/random.h>

#include <ATen/ThreadLocalState.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <memory>

namespace redco::lua {

/// While it lives, this thread runs the scripts of a restricted engine. Every operator, also those
/// that others and backward call, first takes its share of the steps that are left; new tensors are
/// zeroed and count against the engine's limit; what draws random numbers draws them from the
/// engine's own generator. The modes of the thread (gradients, autocast, ...) are put back after
/// it.
class Confinement {
 public:
  explicit Confinement(Context& context);
  ~Confinement();
  Confinement(const Confinement&) = delete;
  Confinement& operator=(const Confinement&) = delete;

  /// The context of the restricted engine that runs on this thread; null: none does.
  static Context* current();

  /// While it lives, a function of the program runs, as if no engine did.
  class Outside {
   public:
    Outside();
    ~Outside();
    Outside(const Outside&) = delete;
    Outside& operator=(const Outside&) = delete;

   private:
    Confinement* inner_;
    std::unique_ptr<at::ThreadLocalStateGuard> modes_;
    TensorMemory::Use memory_;
  };

 private:
  at::ThreadLocalState modes_;  // of the program
  at::ThreadLocalStateGuard restored_{modes_};
  Context& context_;
  Confinement* outer_;
  TensorMemory::Use memory_;
  WithRng rng_;
  c10::impl::IncludeDispatchKeyGuard metered_;
};

}  // namespace redco::lua
