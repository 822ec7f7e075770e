// Built as libcaffe2_nvrtc.so: a program that links it has that library loaded already when
// CudaKernels asks for it.
#include "fake_driver.h"

#include <cstring>
#include <list>

namespace redco::testing {

__attribute__((visibility("default"))) FakeDriver& fake_driver() {
  static FakeDriver state;
  return state;
}

namespace {

struct Program {
  std::string source, code;
};
struct Function {
  std::string name;
  const std::string* code;
  int most_shared = 0;
};

std::list<std::string> modules;
std::list<Function> functions;
thread_local bool has_context = false;

template <class T>
T& as(void* handle) {
  return *static_cast<T*>(handle);
}

}  // namespace
}  // namespace redco::testing

using namespace redco::testing;

#define EXPORTED __attribute__((visibility("default")))
extern "C" {
EXPORTED int nvrtcVersion(int* major, int* minor) {
  *major = 13;
  *minor = fake_driver().nvrtc_minor;
  return 0;
}
EXPORTED int nvrtcCreateProgram(void** program, const char* source, const char*, int,
                                const char* const*, const char* const*) {
  *program = new Program{source, ""};
  return 0;
}
EXPORTED int nvrtcCompileProgram(void* program, int n, const char* const* options) {
  ++fake_driver().n_compiled;
  if (fake_driver().fails_to_compile) return 6;
  for (int i = 0; i < n; ++i) as<Program>(program).code += std::string(options[i]) + " ";
  as<Program>(program).code += as<Program>(program).source;
  return 0;
}
EXPORTED int nvrtcGetProgramLogSize(void*, size_t* size) {
  *size = 11;
  return 0;
}
EXPORTED int nvrtcGetProgramLog(void*, char* log) {
  std::memcpy(log, "not so good", 11);
  return 0;
}
EXPORTED int nvrtcGetCUBINSize(void* program, size_t* size) {
  *size = as<Program>(program).code.size();
  return 0;
}
EXPORTED int nvrtcGetCUBIN(void* program, char* code) {
  std::memcpy(code, as<Program>(program).code.data(), as<Program>(program).code.size());
  return 0;
}
EXPORTED int nvrtcDestroyProgram(void** program) {
  delete static_cast<Program*>(*program);
  return 0;
}
EXPORTED int cuDeviceGetAttribute(int* value, int attribute, int device) {
  *value = attribute == 75 ? 9 : fake_driver().minor_of_device[device];
  return 0;
}
EXPORTED int cuCtxGetCurrent(void** context) {
  *context = has_context ? &has_context : nullptr;
  return 0;
}
EXPORTED int cuDevicePrimaryCtxRetain(void** context, int) {
  ++fake_driver().n_contexts_made[std::this_thread::get_id()];
  *context = &has_context;
  return 0;
}
EXPORTED int cuCtxSetCurrent(void*) {
  has_context = true;
  return 0;
}
EXPORTED int cuModuleLoadData(void** module, const void* code) {
  if (!has_context) return 201;
  modules.emplace_back(static_cast<const char*>(code));
  *module = &modules.back();
  return 0;
}
EXPORTED int cuModuleGetFunction(void** function, void* module, const char* name) {
  functions.push_back({name, &as<std::string>(module)});
  *function = &functions.back();
  return 0;
}
EXPORTED int cuFuncSetAttribute(void* function, int attribute, int value) {
  if (attribute != 8) return 1;
  as<Function>(function).most_shared = value;
  return 0;
}
EXPORTED int cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned n_threads,
                            unsigned, unsigned, unsigned shared, void*, void**, void**) {
  const auto& f = as<Function>(function);
  fake_driver().launches.push_back(
      {f.name, *f.code, {x, y, z}, n_threads, shared, f.most_shared, has_context});
  return 0;
}
EXPORTED int cuGetErrorName(int error, const char** name) {
  *name = error == 201 ? "CUDA_ERROR_INVALID_CONTEXT" : "another";
  return 0;
}
}
