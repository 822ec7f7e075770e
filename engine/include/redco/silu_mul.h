#pragma once

#include <redco/export.h>

#include <ATen/core/Tensor.h>

namespace redco {

/// silu(gate) * up, the gated activation of LLaMA's layers (SwiGLU, arXiv 2002.05202). Backward
/// keeps `gate` and `up` alone. Differentiable twice.
REDCO_API at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up);

}  // namespace redco
