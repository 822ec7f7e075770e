// Runs operators for their shapes alone.

#pragma once

#include "../../kernels/training_kernels.h"
#include "../call/execution.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <memory>

namespace redco::sharding {

/// A tensor of the device meta with the geometry of the whole of this one.
at::Tensor whole_meta(const at::Tensor& tensor);

/// Runs this thread's operators for their shapes alone, on an imagined mesh, while it exists.
class WithoutValues : public Execution {
 public:
  explicit WithoutValues(std::shared_ptr<const Mesh> mesh);

  bool has_values() const override { return false; }
  std::shared_ptr<const Mesh> mesh() const override { return mesh_; }
  void before(Call& call) override;
  void run(const Call& call, const CallPlan& plan, torch::jit::Stack& local) override;
  void after(const Call& call, const CallPlan& plan, c10::ArrayRef<c10::IValue> results) override;

  int64_t n_calls() const { return n_calls_; }
  /// Of the products on a rank.
  double flops() const { return flops_; }

 private:
  std::shared_ptr<const Mesh> mesh_;
  int64_t n_calls_ = 0;
  double flops_ = 0;
  kernels::TrainingKernels training_kernels_;
  WithExecution running_{this};
};

}  // namespace redco::sharding
