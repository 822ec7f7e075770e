#pragma once

#include "trained_params.h"

#include <redco/optim.h>
#include <redco/tree.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

namespace redco::train {

/// Applies gradients to parameters with one optimizer. Several can share the parameters.
class OptimizerStep {
 public:
  /// Throws Error for an optimizer that only changes gradients. `offloads`: see
  /// TrainerOptions::offload_optimizer.
  OptimizerStep(std::shared_ptr<Optimizer> optimizer, std::shared_ptr<Deployer> deployer,
                bool offloads);

  const std::shared_ptr<Optimizer>& optimizer() const { return optimizer_; }

  /// The optimizer's first state, or `given`, in the placements of the parameters and on their
  /// device, or in the host's memory. Throws Error if
  /// `given` is not a state of this optimizer and these parameters.
  Tree init(const TrainedParams& params, std::optional<Tree> given) const;

  /// The optimizer's first state for other tensors in place of the parameters, such as those that
  /// have no values while the layout is found.
  Tree first_state(const TrainedParams& params, const Tree& like) const;

  /// Performs the optimizer step after `step` others. `grads` has one gradient for each leaf,
  /// undefined for leaves that stay unchanged. `accepts` is given the global norm before clipping;
  /// if it returns false nothing changes. Returns that norm; `params.refresh` must follow. Throws
  /// Error if there is no gradient.
  at::Tensor apply(const TrainedParams& params, std::vector<at::Tensor> grads, int64_t step,
                   Tree& opt_state, const std::function<bool(const at::Tensor& norm)>& accepts);

  /// Whether parameters without a gradient are logged, once: not if a script chooses them.
  void log_missing(bool logs) { logs_missing_ = logs; }

 private:
  Update& update_of(const TrainedParams& params, const std::vector<size_t>& present, int64_t step);

  std::shared_ptr<Optimizer> optimizer_;
  std::shared_ptr<Deployer> deployer_;
  bool offloads_;
  std::map<std::vector<size_t>, Update> updates_;  // by the leaves that had gradients
  bool logs_missing_ = true;
};

}  // namespace redco::train
