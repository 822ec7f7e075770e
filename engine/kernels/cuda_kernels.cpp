// Compiles CUDA kernels by NVRTC and queues them by the driver.

#include "cuda_kernels.h"

#include "../core/libtorch_versions.h"

#include <redco/error.h>

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <dlfcn.h>
#include <vector>

namespace redco {

namespace {

// The functions that are used, with the types of nvrtc.h and cuda.h: enums are ints, handles are
// pointers.
struct Library {
  int (*create_program)(void**, const char*, const char*, int, const char* const*,
                        const char* const*);
  int (*compile_program)(void*, int, const char* const*);
  int (*log_size)(void*, size_t*);
  int (*log)(void*, char*);
  int (*cubin_size)(void*, size_t*);
  int (*cubin)(void*, char*);
  int (*destroy_program)(void**);
  int (*device_attribute)(int*, int, int);
  int (*load_module)(void**, const void*);
  int (*get_function)(void**, void*, const char*);
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
    find(both, "nvrtcCreateProgram", create_program);
    find(both, "nvrtcCompileProgram", compile_program);
    find(both, "nvrtcGetProgramLogSize", log_size);
    find(both, "nvrtcGetProgramLog", log);
    find(both, "nvrtcGetCUBINSize", cubin_size);
    find(both, "nvrtcGetCUBIN", cubin);
    find(both, "nvrtcDestroyProgram", destroy_program);
    find(both, "cuDeviceGetAttribute", device_attribute);
    find(both, "cuModuleLoadData", load_module);
    find(both, "cuModuleGetFunction", get_function);
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

// The machine code of a source for the GPU.
std::vector<char> compiled(const char* source, c10::Device device) {
  constexpr int major_attribute = 75, minor_attribute = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_...
  const Library& library = Library::get();
  int major = 0, minor = 0;
  library.check(library.device_attribute(&major, major_attribute, device.index()), "the GPU");
  library.check(library.device_attribute(&minor, minor_attribute, device.index()), "the GPU");
  std::string architecture =
      "--gpu-architecture=sm_" + std::to_string(major) + std::to_string(minor);
  // Separate rounding gives the same numbers as the CPU.
  const char* options[] = {architecture.c_str(), "--std=c++17", "--fmad=false"};
  void* program = nullptr;
  require(library.create_program(&program, source, "kernels.cu", 0, nullptr, nullptr) == 0,
          "NVRTC has no memory for a program");
  int result = library.compile_program(program, int(std::size(options)), options);
  size_t size = 0;
  std::vector<char> code;
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
  require(result == 0 && !code.empty(), "a CUDA kernel cannot be compiled for ", architecture, ": ",
          log);
  return code;
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
  require(library.missing.empty(), "CUDA kernels cannot be compiled: ", library.missing);
  void*& module = modules_[device.index()];
  if (module == nullptr)
    library.check(library.load_module(&module, compiled(source_, device).data()), "a CUDA module");
  library.check(library.get_function(&function, module, kernel), kernel);
  return function;
}

void CudaKernels::launch(const char* kernel, c10::Device device, int64_t n_blocks, int n_threads,
                         void** arguments) {
  c10::OptionalDeviceGuard guard(device);
  void* stream = handle_of(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  const Library& library = Library::get();
  library.check(library.launch(function(kernel, device), unsigned(n_blocks), 1, 1,
                               unsigned(n_threads), 1, 1, 0, stream, arguments, nullptr),
                kernel);
}

}  // namespace redco
