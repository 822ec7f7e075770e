#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>

namespace redco::kernels {

/// While it lives, layers on this thread call the operators that training calls, even where
/// inference has a faster kernel.
class TrainingKernels {
 public:
  TrainingKernels();
  ~TrainingKernels();
  static bool are_forced();  ///< on this thread
  /// Whether a layer of these tensors (null: none) on a CPU must call the operators of training:
  /// also if a gradient is recorded, within transforms, and under autocast.
  static bool are_needed(std::initializer_list<const at::Tensor*> tensors);
  TrainingKernels(const TrainingKernels&) = delete;
  TrainingKernels& operator=(const TrainingKernels&) = delete;

 private:
  bool outer_;
};

}  // namespace redco::kernels
