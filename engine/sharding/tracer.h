#pragma once

#include "plan.h"

namespace redco::sharding {

/// Observes the operators that one thread calls on sharded tensors.
class Tracer {
 public:
  virtual ~Tracer() = default;
  /// Called before the plan is made. May change the placements of the arguments.
  virtual void before(Call& call) = 0;
  /// Runs the operator, or the plan's own function, on the local arguments.
  virtual void run(const Call& call, const Plan& plan, torch::jit::Stack& local) = 0;
  virtual void after(const Call& call, const Plan& plan, c10::ArrayRef<c10::IValue> results) = 0;
};

/// The tracer of this thread, or null.
Tracer*& current_tracer();

}  // namespace redco::sharding
