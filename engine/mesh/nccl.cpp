// Collectives on GPUs: all there is in the library redco_nccl.
#include "nccl.h"

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

extern "C" __attribute__((visibility("default"))) void redco_connect_nccl(
    const redco::NcclRequest& request, redco::Backend& result) {
  c10::cuda::set_device(request.device.index());
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = request.timeout;
  auto nccl = c10::make_intrusive<c10d::ProcessGroupNCCL>(
      request.store, static_cast<int>(request.rank), static_cast<int>(request.size), options);
  nccl->eagerConnectSingleDevice(request.device);
  result = {.c10d = nccl, .has_reduce_scatter = true, .runs_on_stream = true};
}

static_assert(std::is_same_v<decltype(&redco_connect_nccl), redco::NcclEntry>);
