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

std::string cuda_device_name(int number) {
  // The driver's own library, which a program that works on a GPU has loaded.
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
