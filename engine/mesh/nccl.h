#pragma once

#include "backend.h"

#include <redco/export.h>
#include <redco/mesh.h>

namespace redco::mesh {

/// Connects the ranks on their GPUs. Loads the library redco_cuda, which is built if there are the
/// headers of CUDA and contains the code that needs them. Throws Error if it cannot be loaded.
Backend make_nccl(const DeviceRequest& request);

/// Sets the variables of NCCL and of c10d that have no value yet: for the network that reaches the
/// store of the run, and against what c10d does beside redco. To be called before threads connect,
/// which read variables.
REDCO_API void set_nccl_variables(const Processes& processes);

/// The function of that library.
constexpr const char* nccl_entry = "redco_connect_nccl";
using NcclEntry = void (*)(const DeviceRequest& request, Backend& result);

}  // namespace redco::mesh
