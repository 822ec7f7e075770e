#include <redco/cuda.h>

#include <redco/error.h>

#include <ATen/detail/CUDAHooksInterface.h>

#include <dlfcn.h>
#include <mutex>

namespace redco {

void load_cuda() {
  static std::mutex mutex;
  static bool loaded = false;
  std::lock_guard lock(mutex);
  if (loaded) return;
  // Found beside libtorch_cpu.so, by this library's own search path. Loading registers its kernels.
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    fail("device \"cuda\": LibTorch's CUDA library cannot be loaded: ", dlerror(),
         "; `REDCO_CUDA=1 ./bootstrap` gets what it needs");
  }
  require(at::detail::getCUDAHooks().deviceCount() > 0,
          "device \"cuda\": there is no NVIDIA GPU, or no driver for it");
  loaded = true;
}

}  // namespace redco
