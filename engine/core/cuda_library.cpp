#include "cuda_library.h"

#include <redco/detail/cuda.h>
#include <redco/error.h>

#include <dlfcn.h>

namespace redco {

void* function_of_cuda_library(const char* name, const std::string& user) {
  load_cuda();
  Dl_info here;
  require(dladdr(reinterpret_cast<void*>(&function_of_cuda_library), &here) != 0,
          "cannot find this library");
  std::string path = here.dli_fname;
  path = path.substr(0, path.rfind('/') + 1) + "libredco_cuda.so";
  void* library = dlopen(path.c_str(), RTLD_NOW);
  require(library != nullptr, user,
          " need the library redco_cuda, which is built where the headers of CUDA and NCCL are "
          "(`REDCO_CUDA=1 ./bootstrap` fetches them), but it cannot be loaded: ",
          library == nullptr ? dlerror() : "");
  void* function = dlsym(library, name);
  require(function != nullptr, path, " is of another version");
  return function;
}

}  // namespace redco
