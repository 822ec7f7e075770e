#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/functorch/TensorWrapper.h>

namespace redco::lua {

/// Returns the tensor inside of those that transforms such as vmap make. That of a batch has all of
/// its elements.
inline at::Tensor untransformed(at::Tensor tensor) {
  while (tensor.defined()) {
    if (const auto* batched = at::functorch::maybeGetBatchedImpl(tensor))
      tensor = batched->value();
    else if (const auto* wrapper = at::functorch::maybeGetTensorWrapper(tensor))
      tensor = wrapper->value();
    else
      break;
  }
  return tensor;
}

}  // namespace redco::lua
