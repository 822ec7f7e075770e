#pragma once

#include <redco/export.h>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace redco {

/// x times 1 / (1 - p), rounded to x's dtype, where a draw of `rng` with probability 1 - p keeps
/// the element, else times 0. One pass with a CounterGenerator; several operators with another
/// generator, and inside functorch's transformations. Throws Error if p is no probability, and if x
/// is not of a floating-point dtype.
REDCO_API at::Tensor dropout(const at::Tensor& x, double p, const at::Generator& rng);

}  // namespace redco
