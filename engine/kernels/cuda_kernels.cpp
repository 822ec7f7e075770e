// Compiles CUDA kernels with NVRTC and queues them with the driver.

#include "cuda_kernels.h"

#include "../core/libtorch_versions.h"
#include "kept_code.h"

#include <redco/detail/user_folder.h>
#include <redco/error.h>

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <dlfcn.h>
#include <algorithm>
#include <cstdint>

namespace redco {

namespace {

// The functions that are used, with the types of nvrtc.h and cuda.h: enums are ints, handles are
// pointers.
struct Library {
  int (*compiler_version)(int*, int*);
  int (*create_program)(void**, const char*, const char*, int, const char* const*,
                        const char* const*);
  int (*compile_program)(void*, int, const char* const*);
  int (*log_size)(void*, size_t*);
  int (*log)(void*, char*);
  int (*cubin_size)(void*, size_t*);
  int (*cubin)(void*, char*);
  int (*destroy_program)(void**);
  int (*device_attribute)(int*, int, int);
  int (*current_context)(void**);
  int (*retain_context)(void**, int);
  int (*set_context)(void*);
  int (*load_module)(void**, const void*);
  int (*get_function)(void**, void*, const char*);
  int (*set_attribute)(void*, int, int);
  int (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*,
                void**, void**);
  int (*error_name)(int, const char**);
  std::string missing;

  Library() {
    missing = no_handles;
    if (!missing.empty()) return;
    // LibTorch's library for its own kernels of this kind depends on both libraries.
    void* both = dlopen("libcaffe2_nvrtc.so", RTLD_LAZY);
    if (both == nullptr) {
      missing = dlerror();
      return;
    }
    find(both, "nvrtcVersion", compiler_version);
    find(both, "nvrtcCreateProgram", create_program);
    find(both, "nvrtcCompileProgram", compile_program);
    find(both, "nvrtcGetProgramLogSize", log_size);
    find(both, "nvrtcGetProgramLog", log);
    find(both, "nvrtcGetCUBINSize", cubin_size);
    find(both, "nvrtcGetCUBIN", cubin);
    find(both, "nvrtcDestroyProgram", destroy_program);
    find(both, "cuDeviceGetAttribute", device_attribute);
    find(both, "cuCtxGetCurrent", current_context);
    find(both, "cuDevicePrimaryCtxRetain", retain_context);
    find(both, "cuCtxSetCurrent", set_context);
    find(both, "cuModuleLoadData", load_module);
    find(both, "cuModuleGetFunction", get_function);
    find(both, "cuFuncSetAttribute", set_attribute);
    find(both, "cuLaunchKernel", launch);
    find(both, "cuGetErrorName", error_name);
  }

  static const Library& get() {
    static const Library library;
    return library;
  }

  void check(int result, const char* what) const {
    if (result == 0) return;
    const char* name = nullptr;
    error_name(result, &name);
    fail(what, ": the CUDA driver reports ", name == nullptr ? "an unknown error" : name);
  }

 private:
  template <class Function>
  void find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr && missing.empty()) missing = std::string("there is no ") + name;
  }
};

std::string compiled(const char* source, const char* const* options, int n_options) {
  const Library& library = Library::get();
  void* program = nullptr;
  require(library.create_program(&program, source, "kernels.cu", 0, nullptr, nullptr) == 0,
          "NVRTC has no memory for a program");
  int result = library.compile_program(program, n_options, options);
  size_t size = 0;
  std::string code;
  if (result == 0 && library.cubin_size(program, &size) == 0) {
    code.resize(size);
    result = library.cubin(program, code.data());
  }
  std::string log;
  if (result != 0 && library.log_size(program, &size) == 0) {
    log.resize(size);
    library.log(program, log.data());
  }
  library.destroy_program(&program);
  require(result == 0 && !code.empty(), "a CUDA kernel cannot be compiled for ", options[0], ": ",
          log);
  return code;
}

// The machine code of a source for the GPU, compiled now or by an earlier process.
std::string code_of(const char* source, c10::Device device) {
  const std::string architecture =
      "--gpu-architecture=sm_" + std::to_string(compute_capability(device));
  // Separate rounding gives the same numbers as the CPU.
  const char* options[] = {architecture.c_str(), "--std=c++17", "--fmad=false"};
  int major = 0, minor = 0;
  require(Library::get().compiler_version(&major, &minor) == 0, "NVRTC does not tell its version");
  std::string key = "NVRTC " + std::to_string(major) + "." + std::to_string(minor);
  for (const char* option : options) key += std::string(" ") + option;
  key += std::string("\n") + source;
  const std::string cache = user_folder("XDG_CACHE_HOME", "/.cache");
  return kept_code(cache.empty() ? "" : cache + "/redco/kernels", key,
                   [&] { return compiled(source, options, int(std::size(options))); });
}

// A thread that has called nothing of the CUDA runtime has no context. It gets the one that the
// runtime uses, which is never released.
void need_context(c10::Device device) {
  const Library& library = Library::get();
  void* context = nullptr;
  library.check(library.current_context(&context), "the context of the GPU");
  if (context != nullptr) return;
  library.check(library.retain_context(&context, device.index()), "the context of the GPU");
  library.check(library.set_context(context), "the context of the GPU");
}

}  // namespace

bool CudaKernels::are_available(std::string* why) {
  const Library& library = Library::get();
  if (why != nullptr) *why = library.missing;
  return library.missing.empty();
}

void* CudaKernels::function(const char* kernel, c10::Device device) {
  std::lock_guard lock(mutex_);
  void*& function = functions_[{device.index(), kernel}];
  if (function != nullptr) return function;
  const Library& library = Library::get();
  void*& module = modules_[device.index()];
  if (module == nullptr)
    library.check(library.load_module(&module, code_of(source_, device).data()), "a CUDA module");
  library.check(library.get_function(&function, module, kernel), kernel);
  return function;
}

void CudaKernels::launch(const char* kernel, c10::Device device, const Grid& grid,
                         void** arguments) {
  const Library& library = Library::get();
  require(library.missing.empty(), "CUDA kernels cannot be compiled: ", library.missing);
  c10::OptionalDeviceGuard guard(device);
  void* stream = handle_of(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  need_context(device);
  void* const queued = function(kernel, device);
  constexpr int64_t most_without_asking = 48 * 1024;
  constexpr int shared_attribute = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
  if (grid.shared_bytes > most_without_asking)
    library.check(library.set_attribute(queued, shared_attribute, int(grid.shared_bytes)), kernel);
  library.check(library.launch(queued, unsigned(grid.x), unsigned(grid.y), unsigned(grid.z),
                               unsigned(grid.n_threads), 1, 1, unsigned(grid.shared_bytes), stream,
                               arguments, nullptr),
                kernel);
}

int compute_capability(c10::Device device) {
  constexpr int major_attribute = 75, minor_attribute = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_...
  const Library& library = Library::get();
  int major = 0, minor = 0;
  library.check(library.device_attribute(&major, major_attribute, device.index()), "the GPU");
  library.check(library.device_attribute(&minor, minor_attribute, device.index()), "the GPU");
  return 10 * major + minor;
}

const char* kernel_suffix(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::kFloat:
      return "float";
    case c10::kBFloat16:
      return "bfloat16";
    case c10::kHalf:
      return "half";
    default:
      return nullptr;
  }
}

bool has_kernels_for(const at::Tensor& tensor) {
  return tensor.is_cuda() && kernel_suffix(tensor.scalar_type()) != nullptr &&
         CudaKernels::are_available();
}

bool begins_at_pack(const at::Tensor& tensor) {
  return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % pack_bytes == 0;
}

int threads_for(int64_t n_items) {
  constexpr int64_t warp = 32, most = 256;
  return int(std::min(most, (n_items + warp - 1) / warp * warp));
}

}  // namespace redco
