#pragma once

#include <ATen/core/Tensor.h>

namespace redco::train {

/// Must be called before backward from `loss`: lets autograd run the conversions of parameters
/// (casts, transposes, views) as soon as their gradients are complete.
///
/// Autograd runs the newest operators first. Parameters that are cast before the forward pass have
/// the oldest: without this call, the gradients of all copies stay in memory until backward ends,
/// and no parameter has its gradient before.
void run_conversions_early(const at::Tensor& loss);

}  // namespace redco::train
