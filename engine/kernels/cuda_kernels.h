#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace redco {

/// Kernels in CUDA C++ that are compiled when a GPU first needs one. The compiler, NVRTC, comes
/// with LibTorch's CUDA libraries, so building the engine needs no toolkit. Thread-safe.
class CudaKernels {
 public:
  explicit CudaKernels(const char* source) : source_(source) {}

  /// Queues `n_blocks` blocks of `n_threads` threads of a kernel on the device's current stream.
  /// `arguments` points to each argument. Throws Error.
  void launch(const char* kernel, c10::Device device, int64_t n_blocks, int n_threads,
              void** arguments);

  /// Whether the compiler and the driver can be loaded; if not, `why` is the reason.
  static bool are_available(std::string* why = nullptr);

 private:
  void* function(const char* kernel, c10::Device device);

  const char* source_;
  std::mutex mutex_;
  std::map<c10::DeviceIndex, void*> modules_;
  std::map<std::pair<c10::DeviceIndex, std::string>, void*> functions_;
};

}  // namespace redco
