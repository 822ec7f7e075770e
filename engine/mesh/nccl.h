#pragma once

#include "backend.h"

namespace redco {

/// Connects the ranks on their GPUs. Loads the library redco_nccl, which is built where a CUDA
/// toolkit is and carries what of this needs CUDA. Throws Error where it cannot be loaded.
Backend make_nccl(const DeviceRequest& request);

/// The one function of that library.
constexpr const char* nccl_entry = "redco_connect_nccl";
using NcclEntry = void (*)(const DeviceRequest& request, Backend& result);

}  // namespace redco
