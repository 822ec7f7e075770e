#pragma once

#include "trained_params.h"

#include <redco/optim.h>
#include <redco/tree.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace redco::train {

/// Applies gradients to parameters with one optimizer. Several can share the parameters.
class OptimizerStep {
 public:
  /// Throws Error for an optimizer that only changes gradients.
  OptimizerStep(std::shared_ptr<Optimizer> optimizer, std::shared_ptr<Deployer> deployer);

  const std::shared_ptr<Optimizer>& optimizer() const { return optimizer_; }

  /// The optimizer's first state, or `given`, in the placements of the parameters.
  Tree init(const TrainedParams& params, std::optional<Tree> given) const;

  /// Performs the optimizer step after `step` others. `grads` has one gradient for each leaf,
  /// undefined for leaves that stay unchanged. `accepts` is given the global norm before clipping;
  /// if it returns false nothing changes. Returns that norm; `params.refresh` must follow. Throws
  /// Error if there is no gradient.
  at::Tensor apply(const TrainedParams& params, std::vector<at::Tensor> grads, int64_t step,
                   Tree& opt_state, const std::function<bool(const at::Tensor& norm)>& accepts);

 private:
  void select(const TrainedParams& params, const std::vector<size_t>& present, int64_t step);

  std::shared_ptr<Optimizer> optimizer_;
  std::shared_ptr<Deployer> deployer_;
  Update update_;                // of the leaves that had gradients in the last step
  std::vector<size_t> present_;  // the indices of these leaves
};

}  // namespace redco::train
