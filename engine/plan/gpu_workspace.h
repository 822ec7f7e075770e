#pragma once

#include <redco/export.h>

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <string>

namespace redco::plan {

/// The bytes that an operator allocates on a GPU while it runs, beside its arguments and results.
using GpuWorkspace = int64_t (*)(c10::ArrayRef<c10::IValue> arguments,
                                 c10::ArrayRef<c10::IValue> results);

/// Null for operators that allocate none.
REDCO_API GpuWorkspace find_gpu_workspace(const std::string& operator_name);

}  // namespace redco::plan
