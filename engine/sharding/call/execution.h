#pragma once

#include "call_plan.h"

#include <memory>
#include <string>
#include <utility>

namespace redco::sharding {

/// How a thread runs operators on sharded tensors. The default runs them on the parts.
class Execution {
 public:
  virtual ~Execution() = default;
  /// Whether tensors have values. Without values nothing outside changes: plain tensors are not
  /// written to, and writes are not counted.
  virtual bool has_values() const = 0;
  /// Whether everything else is as in a run: collectives, what is kept between calls, and the count
  /// of writes.
  virtual bool is_faithful() const { return has_values(); }
  /// The mesh that plain tensors are sharded over, whichever is asked for. Null: that one.
  virtual std::shared_ptr<const Mesh> mesh() const { return nullptr; }
  /// Whether this process only plans what it has itself, too.
  virtual bool is_planned() const { return false; }
  /// Called before the plan is made. May change the placements of the arguments.
  virtual void before(Call& call) = 0;
  /// Calls the operator, or the plan's own function, on the local arguments.
  virtual void run(const Call& call, const CallPlan& plan, torch::jit::Stack& local) = 0;
  virtual void after(const Call& call, const CallPlan& plan,
                     c10::ArrayRef<c10::IValue> results) = 0;
  /// Without values: an operator of this name has run on zeros, for the shapes of its results.
  virtual void ran_on_zeros(const std::string&) {}
  /// Without values: a script reads one that nobody knows. 1 stands for it.
  virtual void read_value() {}
};

/// Calls the operator, or the plan's own function, on the local arguments.
void call_on(const Call& call, const CallPlan& plan, torch::jit::Stack& local);

/// The execution of this thread.
Execution& execution();

/// Sets the execution of this thread for a scope; null sets the default.
class WithExecution {
 public:
  explicit WithExecution(Execution* execution);
  ~WithExecution();
  WithExecution(const WithExecution&) = delete;
  WithExecution& operator=(const WithExecution&) = delete;

 private:
  Execution* previous_;
};

/// Takes over calls of operators without sharded arguments on this thread, such as those that make
/// tensors, while the key Fake is included. Returns whether it has called the operator. Null: none.
using PlainCalls = bool (*)(const c10::OperatorHandle& handle, torch::jit::Stack& stack);
PlainCalls& plain_calls();

}  // namespace redco::sharding
