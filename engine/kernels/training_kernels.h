#pragma once

namespace redco::kernels {

/// While it lives, layers on this thread call the operators that training calls, even where
/// inference has a faster kernel.
class TrainingKernels {
 public:
  TrainingKernels();
  ~TrainingKernels();
  static bool are_forced();  ///< on this thread
  TrainingKernels(const TrainingKernels&) = delete;
  TrainingKernels& operator=(const TrainingKernels&) = delete;

 private:
  bool outer_;
};

}  // namespace redco::kernels
