// The memory of CPU tensors.
#pragma once

#include <redco/export.h>

#include <cstdint>

namespace redco {

/// CPU tensors of more bytes are in the heap, in whole pages.
constexpr int64_t tensor_heap_threshold = int64_t{64} << 10, tensor_heap_page = 4096;

/// Gives the large CPU tensors of the whole process a heap of their own, from now on. It has huge
/// pages, and keeps what is freed, but no more memory than its tensors needed at one time. Where it
/// finds no address space, as under `ulimit -v`, malloc is used.
///
/// Other mallocs need more memory or time. Debian 12's, on two cores of an Intel Xeon, medians of
/// training steps with AdamW, relative to the heap:
///
///   peak memory, time of a step   GPT-2 124M    T5 60M        GPT-2, ZeRO 3 on two processes
///   tcmalloc_minimal 2.10         1.09, 1.0     1.04, 0.9     1.10, 1.0
///   mimalloc 2.0.9                1.02, 1.3     1.04, 1.5     1.00, 1.6
///   mimalloc, large pages         1.11, 1.2     1.24, 0.9     1.11, 1.6
///   jemalloc 5.3                  1.03, 1.2     1.03, 1.6     0.99, 1.6
///   jemalloc, huge pages          1.09, 2.0     1.08, 1.5
REDCO_API void use_tensor_heap();

/// Bytes of the tensors in the heap.
REDCO_API int64_t tensor_heap_bytes();

}  // namespace redco
