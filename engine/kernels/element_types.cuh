// The element types of kernels: how they are stored, and conversions to float and back. CMake
// inserts this file for #include lines.

namespace {

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
typedef unsigned short u16;

#ifdef __CUDACC__
__device__ float half_to_float(u16 x) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x));
  return wide;
}

__device__ u16 float_to_half(float x) {
  u16 half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
  return half;
}
#endif

struct Float {
  typedef float Stored;
  static __device__ float wide(float x) { return x; }
  static __device__ float narrow(float x) { return x; }
};

struct BFloat16 {
  typedef u16 Stored;
  static __device__ float wide(u16 x) { return __int_as_float(int(unsigned(x) << 16)); }
  static __device__ u16 narrow(float x) {  // rounds to the nearest, ties to even
    unsigned bits = unsigned(__float_as_int(x));
    return x == x ? u16((bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16) : 0x7FC0;
  }
};

struct Half {
  typedef u16 Stored;
  static __device__ float wide(u16 x) { return half_to_float(x); }
  static __device__ u16 narrow(float x) { return float_to_half(x); }
};

}  // namespace
