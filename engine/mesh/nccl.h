#pragma once

#include "backend.h"

namespace redco::mesh {

/// Connects the ranks on their GPUs. Loads the library redco_nccl, which is built if there are the
/// headers of CUDA and contains the code that needs them. Throws Error if it cannot be loaded.
Backend make_nccl(const DeviceRequest& request);

/// The only function of that library.
constexpr const char* nccl_entry = "redco_connect_nccl";
using NcclEntry = void (*)(const DeviceRequest& request, Backend& result);

}  // namespace redco::mesh
