#pragma once

#include "backend.h"

#include <c10/core/Device.h>

namespace redco {

/// What NCCL needs to connect the ranks that share a store.
struct NcclRequest {
  c10::intrusive_ptr<c10d::Store> store;
  int64_t rank = 0;
  int64_t size = 1;
  std::chrono::milliseconds timeout = {};
  c10::Device device = c10::Device(c10::kCUDA, 0);
};

/// Connects the ranks on their GPUs. Loads the library redco_nccl, which is built where a CUDA
/// toolkit is and carries what of this needs CUDA. Throws Error where it cannot be loaded.
Backend make_nccl(const NcclRequest& request);

/// The one function of that library.
constexpr const char* nccl_entry = "redco_connect_nccl";
using NcclEntry = void (*)(const NcclRequest& request, Backend& result);

}  // namespace redco
