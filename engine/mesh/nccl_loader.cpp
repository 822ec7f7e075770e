// Collectives on GPUs, of the library redco_cuda.
#include "nccl.h"

#include "../core/cuda_library.h"

namespace redco::mesh {

Backend make_nccl(const DeviceRequest& request) {
  static const auto connect = reinterpret_cast<NcclEntry>(
      function_of_cuda_library(nccl_entry, "several processes on GPUs"));
  Backend backend;
  connect(request, backend);
  return backend;
}

}  // namespace redco::mesh
