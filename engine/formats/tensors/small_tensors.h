// Tensors that are compared by value to see whether they have changed.
#pragma once

#include <redco/sharding.h>

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace redco {

/// Whether a tensor has up to 1 MiB. A larger one has changed if LibTorch has counted a write in
/// place: it counts writes that change nothing, and not those of running statistics.
inline bool is_small(const at::Tensor& tensor) {
  constexpr int64_t small_bytes = 1 << 20;
  return tensor.numel() * int64_t(tensor.element_size()) <= small_bytes;
}

/// Whether a tensor is compared by value: it is small and not sharded.
inline bool is_compared_by_value(const at::Tensor& tensor) {
  return !tensor.is_meta() && tensor.layout() == at::kStrided && !is_sharded(tensor) &&
         is_small(tensor);
}

}  // namespace redco
