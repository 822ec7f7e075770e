#pragma once

#include "limited_memory.h"
#include "state/context.h"

#include <redco/detail/operator_interceptor.h>
#include <redco/random.h>

#include <ATen/ThreadLocalState.h>

#include <memory>

namespace redco::lua {

/// Runs the scripts of a restricted engine on this thread while it exists. Every operator,
/// including those called by other operators and by backward, takes instructions; new tensors count
/// against the engine's limit; random numbers come from the engine's generator. The modes of the
/// thread (gradients, autocast, ...) are restored afterwards.
class Confinement {
 public:
  explicit Confinement(Context& context);
  ~Confinement();
  Confinement(const Confinement&) = delete;
  Confinement& operator=(const Confinement&) = delete;

  /// The context of the restricted engine that runs on this thread, or null.
  static Context* current();

  /// Suspends the confinement while a function of the program runs.
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
  struct Meter final : OperatorInterceptor {
    bool before(const c10::OperatorHandle& op, torch::jit::Stack& stack) override;
  };
  Meter meter_;
};

}  // namespace redco::lua
