#pragma once

#include "plan.h"

namespace redco::sharding {

/// Watches the operators that one thread calls on sharded tensors.
class Tracer {
 public:
  virtual ~Tracer() = default;
  /// Before the plan is made: may change where arguments lie.
  virtual void before(Call& call) = 0;
  /// Calls the operator, or the plan's own function, on the local arguments.
  virtual void run(const Call& call, const Plan& plan, torch::jit::Stack& local) = 0;
  virtual void after(const Call& call, const Plan& plan, c10::ArrayRef<c10::IValue> results) = 0;
};

/// The tracer of this thread, or null.
Tracer*& current_tracer();

}  // namespace redco::sharding
