// What CUDA C++ has beside C++, to compile kernels for the CPU. A block has one thread, or threads
// that do not meet; a test sets which one runs.
#pragma once

#include <c10/util/Half.h>

#include <bit>

struct CudaIndex {
  int x = 0, y = 0;
};
inline CudaIndex blockIdx, threadIdx, blockDim{1}, gridDim{1};

inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline void __syncthreads() {}
inline float half_to_float(unsigned short x) { return float(c10::Half(x, c10::Half::from_bits())); }
inline unsigned short float_to_half(float x) { return c10::Half(x).x; }

#define __global__
#define __device__
#define __shared__ static
