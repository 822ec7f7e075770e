#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>

namespace redco::io {

/// Returns a tensor [sizes...] of the bytes at `begin`, in a file that `mapping` owns. Tensors of
/// one `begin` share their elements. When the last of them is freed, its whole pages leave the
/// memory of the process, with what was written into them: a file larger than the memory can be
/// read one tensor after the other.
at::Tensor mapped_tensor(const std::shared_ptr<std::byte>& mapping, std::byte* begin,
                         at::IntArrayRef sizes, at::ScalarType dtype);

}  // namespace redco::io
