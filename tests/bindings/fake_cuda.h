#pragma once

#include <cstdint>

namespace redco::testing {

/// A stand-in for LibTorch's CUDA library: two GPUs of 80 GB, of which a tensor takes its share
/// of a count, and no memory. Of operators there are those that make tensors, and attention.
struct FakeCuda {
  static constexpr int n_devices = 2;
  static constexpr int64_t card_bytes = int64_t{80} << 30;

  int n_synchronized = 0;           ///< calls of synchronizeDevice, for any GPU
  int n_emptied = 0;                ///< calls of emptyCache
  bool events_are_done = true;      ///< whether the GPU has got to the events
  bool attention_by_cudnn = false;  ///< whether the last attention might have chosen cuDNN
};

FakeCuda& fake_cuda();

}  // namespace redco::testing
