#pragma once

#include <redco/export.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace redco {

/// Kernels in CUDA C++ that are compiled when a GPU first needs one. The compiler, NVRTC, comes
/// with LibTorch's CUDA libraries, so building the engine needs no toolkit. What it made is kept in
/// the user's cache folder, for the processes to come. Thread-safe.
class REDCO_API CudaKernels {
 public:
  explicit CudaKernels(const char* source) : source_(source) {}

  /// The blocks of a launch, x times y times z.
  struct Grid {
    int64_t x = 1, y = 1, z = 1;
    int n_threads = 1;         ///< of a block
    int64_t shared_bytes = 0;  ///< dynamic shared memory of a block
  };

  /// Queues a kernel on the device's current stream. `arguments` points to each argument. Throws
  /// Error.
  void launch(const char* kernel, c10::Device device, const Grid& grid, void** arguments);

  /// Whether the compiler and the driver can be loaded; if not, `why` is the reason.
  static bool are_available(std::string* why = nullptr);

 private:
  void* function(const char* kernel, c10::Device device);

  const char* source_;
  std::mutex mutex_;
  std::map<c10::DeviceIndex, void*> modules_;
  std::map<std::pair<c10::DeviceIndex, std::string>, void*> functions_;
};

/// 90 of a GPU with the compute capability 9.0. The driver must be available.
int compute_capability(c10::Device device);

/// The element type in the names of kernels: "float", "bfloat16" or "half"; null for other types.
const char* kernel_suffix(c10::ScalarType dtype);

/// Whether kernels can be launched for a tensor: it is on a GPU, and its type has a suffix.
bool has_kernels_for(const at::Tensor& tensor);

/// The bytes that a thread reads at once: a `Pack` (packs.cuh).
constexpr int64_t pack_bytes = 16;
/// Whether the memory of a tensor begins at a pack.
bool begins_at_pack(const at::Tensor& tensor);

/// The threads of a block that has so many items: whole warps, at most 256.
int threads_for(int64_t n_items);

}  // namespace redco
