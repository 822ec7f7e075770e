#pragma once

#include <redco/export.h>

#include <string>

namespace redco {

/// Loads LibTorch's CUDA library, which programs that stay on the CPU do not carry. Quick when it
/// is loaded already. Throws Error when it, or a library it needs, is missing, and when there is no
/// GPU that it can use.
REDCO_API void load_cuda();

/// What NVIDIA calls the GPU of this number: "NVIDIA H100 80GB HBM3". Empty where nobody knows.
REDCO_API std::string cuda_device_name(int number);

}  // namespace redco
