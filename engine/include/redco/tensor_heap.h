// The memory of CPU tensors.
#pragma once

#include <redco/export.h>

#include <cstdint>

namespace redco {

/// CPU tensors of more bytes are in the heap, in whole pages.
constexpr int64_t tensor_heap_threshold = int64_t{64} << 10, tensor_heap_page = 4096;

/// Gives the large CPU tensors of the whole process a heap of their own, from now on. It has huge
/// pages, and `plan` knows how it fills them. The heap keeps what is freed, but no more memory than
/// its tensors needed at one time: free pages between tensors are moved to where a tensor needs
/// some. With tensors from malloc training needs up to a fifth more memory, or, with the defaults
/// of glibc's malloc, each large tensor costs a system call and newly zeroed pages. Where the heap
/// finds no address space, as under `ulimit -v`, malloc is used.
REDCO_API void use_tensor_heap();

/// Bytes of the tensors in the heap.
REDCO_API int64_t tensor_heap_bytes();

}  // namespace redco
