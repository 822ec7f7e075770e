// The memory formats that LibTorch's kernels for images choose by strides.

#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/MemoryFormat.h>

namespace redco::sharding {

/// The tensor itself, or a copy if sizes of 1 leave open whether it is channels-last. The kernels
/// of batch norm take such a tensor for channels-last, and write the gradient of one that is not.
inline at::Tensor with_clear_format(const at::Tensor& tensor) {
  if (tensor.dim() != 4 && tensor.dim() != 5) return tensor;
  at::MemoryFormat channels_last =
      tensor.dim() == 4 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::ChannelsLast3d;
  bool is_open = !tensor.is_contiguous() && tensor.is_contiguous(channels_last) &&
                 tensor.suggest_memory_format() != channels_last;
  return is_open ? tensor.contiguous() : tensor;
}

}  // namespace redco::sharding
