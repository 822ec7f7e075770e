// Collectives on GPUs with NCCL, in the library redco_cuda.
#include "nccl.h"

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <type_traits>

extern "C" __attribute__((visibility("default"))) void redco_connect_nccl(
    const redco::mesh::DeviceRequest& request, redco::mesh::Backend& result) {
  c10::cuda::set_device(request.device.index());
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = request.timeout;
  auto nccl = c10::make_intrusive<c10d::ProcessGroupNCCL>(request.store, int(request.rank),
                                                          int(request.size), options);
  nccl->eagerConnectSingleDevice(request.device);
  result.c10d = nccl;
  result.has_reduce_scatter = result.runs_on_stream = true;
}

static_assert(c10d::CleanUpOnly == 2, "set_nccl_variables has this number");
static_assert(std::is_same_v<decltype(&redco_connect_nccl), redco::mesh::NcclEntry>);
