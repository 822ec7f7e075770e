// The memory of CPU tensors.
#pragma once

#include <redco/export.h>

#include <cstdint>

namespace redco {

/// Gives CPU tensors of more than `least_in_tensor_heap` bytes a heap of their own, for the whole
/// process and from now on. `plan` counts its fragmentation. With glibc's malloc training needs up
/// to a fifth more memory, or, with its defaults, each large tensor costs a system call and newly
/// zeroed pages. Tensors that find no room in it, as under `ulimit -v`, come from malloc.
REDCO_API void use_tensor_heap();

constexpr int64_t least_in_tensor_heap = int64_t{64} << 10;
/// The unit of its blocks.
constexpr int64_t tensor_heap_page = 4096;

/// Bytes of the tensors in the heap.
REDCO_API int64_t tensor_heap_bytes();

}  // namespace redco
