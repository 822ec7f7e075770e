// Loads the library with the collectives on GPUs.
#include "nccl.h"

#include <redco/detail/cuda.h>
#include <redco/error.h>

#include <dlfcn.h>
#include <string>

namespace redco::mesh {

namespace {

NcclEntry load() {
  load_cuda();
  Dl_info here;
  require(dladdr(reinterpret_cast<void*>(&make_nccl), &here) != 0, "cannot find this library");
  std::string path = here.dli_fname;
  path = path.substr(0, path.rfind('/') + 1) + "libredco_nccl.so";
  void* library = dlopen(path.c_str(), RTLD_NOW);
  if (library == nullptr)
    fail(
        "several processes on GPUs need the library redco_nccl, which is built where the headers "
        "of CUDA and NCCL are (`REDCO_CUDA=1 ./bootstrap` fetches them), but it cannot be loaded: ",
        dlerror());
  auto entry = reinterpret_cast<NcclEntry>(dlsym(library, nccl_entry));
  require(entry != nullptr, path, " is of another version");
  return entry;
}

}  // namespace

Backend make_nccl(const DeviceRequest& request) {
  static const NcclEntry entry = load();
  Backend backend;
  entry(request, backend);
  return backend;
}

}  // namespace redco::mesh
