// Calls on tensors of a stage that runs on other processes.

#pragma once

#include "../call/execution.h"

#include <redco/mesh.h>

#include <optional>

namespace redco::sharding {

/// Operators compute shapes alone, and count as in a run.
class ShapesAlone final : public Execution {
 public:
  explicit ShapesAlone(bool is_planned) : is_planned_(is_planned) {}
  bool has_values() const override { return false; }
  bool is_faithful() const override { return true; }
  bool is_planned() const override { return is_planned_; }
  void before(Call&) override {}
  void run(const Call& call, const CallPlan& plan, torch::jit::Stack& local) override;
  void after(const Call&, const CallPlan&, c10::ArrayRef<c10::IValue>) override {}

 private:
  bool is_planned_;
};

/// While it exists, operators run so if `mesh` is that of an absent stage. A plan of this process
/// leaves them out.
class OnAbsentStage {
 public:
  explicit OnAbsentStage(const Mesh& mesh) {
    if (!mesh.is_absent()) return;
    shapes_.emplace(execution().is_planned());
    scope_.emplace(&*shapes_);
  }
  OnAbsentStage(const OnAbsentStage&) = delete;
  OnAbsentStage& operator=(const OnAbsentStage&) = delete;

 private:
  std::optional<ShapesAlone> shapes_;
  std::optional<WithExecution> scope_;
};

}  // namespace redco::sharding
