#pragma once

#include <redco/export.h>

namespace redco {

/// Loads LibTorch's CUDA library, which programs that stay on the CPU do not carry. Quick when it
/// is loaded already. Throws Error when it, or a library it needs, is missing, and when there is no
/// GPU that it can use.
REDCO_API void load_cuda();

}  // namespace redco
