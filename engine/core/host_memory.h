#pragma once

#include <redco/export.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <functional>

namespace redco {

/// Moves the memory of a GPU's tensor to the host, in place: the tensor, and all others in that
/// memory, stay tensors of the GPU, whose kernels read and write them over its link. Does nothing
/// if the memory is the host's already, or has less than 64 KiB. Throws Error if the host cannot
/// give that much.
REDCO_API void move_to_host(const at::Tensor& tensor);

/// Replaces the memory of a tensor, in place, with its values.
REDCO_API void move_memory(const at::Tensor& tensor, c10::DataPtr memory);
/// Whether that was done.
REDCO_API bool has_moved(const at::Tensor& tensor);

/// While it exists, `move` does on this thread what `move_to_host` would, for tensors of every
/// device: in plans and tests.
using HostMover = std::function<void(const at::Tensor& tensor)>;
class REDCO_API WithHostMover {
 public:
  explicit WithHostMover(HostMover move);
  ~WithHostMover();
  WithHostMover(const WithHostMover&) = delete;
  WithHostMover& operator=(const WithHostMover&) = delete;

 private:
  HostMover outer_;
};

}  // namespace redco
