// Loads LibTorch's CUDA library and selects GPUs.

#include <redco/detail/cuda.h>

#include "require_usage.h"

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <dlfcn.h>
#include <unistd.h>
#include <exception>
#include <mutex>

namespace redco {

namespace {

bool has_driver() { return access("/dev/nvidiactl", F_OK) == 0 || access("/dev/dxg", F_OK) == 0; }

}  // namespace

void load_cuda() {
  static std::mutex mutex;
  static bool loaded = false;
  std::lock_guard lock(mutex);
  if (loaded) return;
  // The library's search path finds it next to libtorch_cpu.so. Loading registers its kernels.
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    require(has_driver(),
            "device \"cuda\": this machine has no NVIDIA GPU, or no driver for it; "
            "without device = \"cuda\" redco-lua works on the CPU");
    fail("device \"cuda\": LibTorch's CUDA library cannot be loaded: ", dlerror(),
         "; `REDCO_CUDA=1 ./bootstrap` gets what it needs");
  }
  require(at::detail::getCUDAHooks().deviceCount() > 0,
          "device \"cuda\": there is no NVIDIA GPU, or no driver for it; nvidia-smi lists "
          "both, and CUDA_VISIBLE_DEVICES may hide GPUs");
  loaded = true;
}

void load_cuda_if_present() noexcept {
  if (!has_driver()) return;
  try {
    load_cuda();
  } catch (const std::exception&) {
    // The first use of a GPU reports the reason.
  }
}

c10::Device use_gpu_of(int64_t local_rank, int64_t local_size, bool is_shared) {
  load_cuda();
  int64_t n = at::detail::getCUDAHooks().deviceCount();
  require_usage(n <= 1 || local_size <= n || is_shared, "device \"cuda\": this host has ",
                local_size, " processes and ", n,
                " GPUs; start one process for each GPU, or let them share with "
                "REDCO_COLLECTIVES=gloo");
  c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(local_rank % n));
  c10::impl::VirtualGuardImpl(c10::kCUDA).setDevice(device);
  return device;
}

std::string cuda_device_name(int number) {
  // The driver's library is loaded in any program that uses a GPU.
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (driver == nullptr) return "";
  auto get = reinterpret_cast<int (*)(int*, int)>(dlsym(driver, "cuDeviceGet"));
  auto get_name = reinterpret_cast<int (*)(char*, int, int)>(dlsym(driver, "cuDeviceGetName"));
  int device = 0;
  char name[256] = "";
  bool is_known = get != nullptr && get_name != nullptr && get(&device, number) == 0 &&
                  get_name(name, sizeof(name), device) == 0;
  dlclose(driver);
  return is_known ? name : "";
}

}  // namespace redco
