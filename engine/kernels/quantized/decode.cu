// Decodes blocks of quantized numbers on GPUs, and multiplies with them: the kernels of on_gpu.cpp,
// which are compiled where they run. A type is a struct with the sizes of its block and
// `value(bytes, i, k)`, element i + k of a block, where i is the first of 4 or 8 neighbours, for
// which the compiler computes their scale once. decode.h says what the bytes mean, and has the same
// operations in the same order.

#include "../element_types.cuh"
#include "../packs.cuh"

#define REDCO_CODE(name) __device__ const float name[16]
#include "codes.cuh"
#undef REDCO_CODE

namespace {

typedef unsigned char u8;
typedef signed char i8;

__device__ float half_at(const u8* bytes) { return half_to_float(u16(bytes[0] | bytes[1] << 8)); }
__device__ u32 word_at(const u8* bytes) {
  return u32(bytes[0]) | u32(bytes[1]) << 8 | u32(bytes[2]) << 16 | u32(bytes[3]) << 24;
}
__device__ float float_at(const u8* bytes) { return __int_as_float(int(word_at(bytes))); }

// Number i of 32 in 16 bytes: the first 16 are the low nibbles.
__device__ int nibble(const u8* bytes, u32 i, u32 k) {
  return bytes[i % 16 + k] >> i / 16 * 4 & 15;
}
// The fifth bits are in the 32 bits in front of the nibbles.
__device__ int five_bits(const u8* bytes, u32 i, u32 k) {
  return nibble(bytes + 4, i, k) | int(word_at(bytes) >> (i + k) & 1U) << 4;
}
// Number i of 256 in 64 bytes.
__device__ int two_bits(const u8* bytes, u32 i, u32 k) {
  return bytes[i / 128 * 32 + i % 32 + k] >> i % 128 / 32 * 2 & 3;
}

struct Q8_0 {
  static constexpr int size = 32, bytes = 34;
  static __device__ float value(const u8* b, u32 i, u32 k) {
    return float(i8(b[2 + i + k])) * half_at(b);
  }
};

struct Q4_0 {
  static constexpr int size = 32, bytes = 18;
  static __device__ float value(const u8* b, u32 i, u32 k) {
    return float(nibble(b + 2, i, k) - 8) * half_at(b);
  }
};

struct Q4_1 {
  static constexpr int size = 32, bytes = 20;
  static __device__ float value(const u8* b, u32 i, u32 k) {
    return float(nibble(b + 4, i, k)) * half_at(b) + half_at(b + 2);
  }
};

struct Q5_0 {
  static constexpr int size = 32, bytes = 22;
  static __device__ float value(const u8* b, u32 i, u32 k) {
    return float(five_bits(b + 2, i, k) - 16) * half_at(b);
  }
};

struct Q5_1 {
  static constexpr int size = 32, bytes = 24;
  static __device__ float value(const u8* b, u32 i, u32 k) {
    return float(five_bits(b + 4, i, k)) * half_at(b) + half_at(b + 2);
  }
};

struct Q2_K {
  static constexpr int size = 256, bytes = 84;
  static __device__ float value(const u8* b, u32 i, u32 k) {
    const u32 group = i / 16;
    const float scale = half_at(b + 80) * float(b[group] & 15);
    const float least = half_at(b + 82) * float(b[group] >> 4);
    return float(two_bits(b + 16, i, k)) * scale - least;
  }
};

struct Q3_K {
  static constexpr int size = 256, bytes = 110;
  static __device__ float value(const u8* b, u32 i, u32 k) {
    const u32 group = i / 16;
    const u8* packed = b + 96;
    const int four = packed[group % 8] >> group / 8 * 4 & 15;
    const int number = (four | (packed[8 + group % 4] >> group / 4 * 2 & 3) << 4) - 32;
    const int third = (b[i % 32 + k] >> i / 32 & 1) << 2;
    return float((two_bits(b + 32, i, k) | third) - 4) * (half_at(b + 108) * float(number));
  }
};

// q (scale s) - (least m), with numbers s and m of 6 bits for each of 8 groups
__device__ float of_8_groups(const u8* b, u32 group, int q) {
  const u8* packed = b + 4 + group % 4;
  const int lower = packed[0], middle = packed[4], upper = packed[8];
  const int s = group < 4 ? lower & 63 : (upper & 15) | (lower >> 2 & 48);
  const int m = group < 4 ? middle & 63 : upper >> 4 | (middle >> 2 & 48);
  return float(q) * (float(s) * half_at(b)) - float(m) * half_at(b + 2);
}

struct Q4_K {
  static constexpr int size = 256, bytes = 144;
  static __device__ float value(const u8* b, u32 i, u32 k) {
    return of_8_groups(b, i / 32, b[16 + i / 64 * 32 + i % 32 + k] >> i / 32 % 2 * 4 & 15);
  }
};

struct Q5_K {
  static constexpr int size = 256, bytes = 176;
  static __device__ float value(const u8* b, u32 i, u32 k) {
    const int four = b[48 + i / 64 * 32 + i % 32 + k] >> i / 32 % 2 * 4 & 15;
    return of_8_groups(b, i / 32, four | (b[16 + i % 32 + k] >> i / 32 & 1) << 4);
  }
};

struct Q6_K {
  static constexpr int size = 256, bytes = 210;
  static __device__ float value(const u8* b, u32 i, u32 k) {
    const u32 half = i / 128, part = i % 128 / 32, place = i % 32 + k;
    const int lower = b[half * 64 + part % 2 * 32 + place] >> part / 2 * 4 & 15;
    const int upper = b[128 + half * 32 + place] >> part * 2 & 3;
    const float scale = float(i8(b[192 + i / 16])) * half_at(b + 208);
    return float((lower | upper << 4) - 32) * scale;
  }
};

struct Iq4Nl {
  static constexpr int size = 32, bytes = 18;
  static __device__ float value(const u8* b, u32 i, u32 k) {
    return iq4_values[nibble(b + 2, i, k)] * half_at(b);
  }
};

struct Iq4Xs {
  static constexpr int size = 256, bytes = 136;
  static __device__ float value(const u8* b, u32 i, u32 k) {
    const u32 group = i / 32;
    const int lower = b[4 + group / 2] >> group % 2 * 4 & 15;
    const int upper = (b[2] | b[3] << 8) >> group * 2 & 3;
    const float scale = half_at(b) * float((lower | upper << 4) - 32);
    return iq4_values[nibble(b + 8 + group * 16, i % 32, k)] * scale;
  }
};

struct Mxfp4 {
  static constexpr int size = 32, bytes = 17;
  static __device__ float value(const u8* b, u32 i, u32 k) {
    const u32 exponent = b[0];
    const u32 bits = exponent < 2 ? 0x200000U << exponent : (exponent - 1) << 23;
    return mxfp4_values[nibble(b + 1, i, k)] * __int_as_float(int(bits));
  }
};

// The first of two neighbours is in the high nibble.
template <const float (&values)[16]>
struct Code4 {
  static constexpr int size = 64, bytes = 36;
  static __device__ float value(const u8* b, u32 i, u32 k) {
    return values[b[4 + i / 2 + k / 2] >> (1 - k % 2) * 4 & 15] * float_at(b);
  }
};
typedef Code4<nf4_values> Nf4;
typedef Code4<fp4_values> Fp4;

struct Int8 {
  static constexpr int size = 64, bytes = 68;
  static __device__ float value(const u8* b, u32 i, u32 k) {
    return float(i8(b[4 + i + k])) * float_at(b);
  }
};

struct Int4 {
  static constexpr int size = 64, bytes = 37;
  static __device__ float value(const u8* b, u32 i, u32 k) {
    return float((b[5 + i / 2 + k / 2] >> k % 2 * 4 & 15) - b[4]) * float_at(b);
  }
};

// float8_e4m3fn
struct Fp8 {
  static constexpr int size = 64, bytes = 68;
  static __device__ float value(const u8* b, u32 i, u32 k) {
    const u32 number = b[4 + i + k], magnitude = number & 0x7FU;
    // The exponents of floats are larger by 120.
    const float wide = __int_as_float(int(magnitude << 20)) * __int_as_float((127 + 120) << 23);
    const float sign = number >> 7 ? -1.0F : 1.0F;
    return (magnitude == 0x7FU ? __int_as_float(0x7FC00000) : wide * sign) * float_at(b);
  }
};

// Each thread decodes a pack of `y`, of which there are `n_packs`.
template <class Blocks, class Type>
__device__ void decode(const u8* blocks, Pack<typename Type::Stored>* y, i64 n_packs) {
  typedef Pack<typename Type::Stored> Packed;
  constexpr u32 n = Blocks::size / Packed::n;
  const i64 i = i64(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n_packs) return;
  const u8* block = blocks + i / n * Blocks::bytes;
  const u32 first = u32(i) % n * Packed::n;
  Packed result;
#pragma unroll
  for (u32 k = 0; k < Packed::n; ++k) result.of[k] = Type::narrow(Blocks::value(block, first, k));
  y[i] = result;
}

constexpr int rows_at_once = 4;
constexpr int n_threads_of_product = 64;

// y [rows, out] = x [rows, in] times blocks [out, in / size]. A block of threads, at most
// `n_threads_of_product` and a power of two, computes an output of some rows. The result of a row
// does not depend on the other rows.
template <class Blocks>
__device__ void multiply(const u8* blocks, const Pack<float>* x, float* y, i64 n_blocks,
                         i64 n_rows) {
  constexpr u32 n = Pack<float>::n;
  // A thread multiplies packs at a distance at which elements have scales and bytes in common.
  constexpr u32 n_packs = Blocks::size == 256 ? 4 : 2;
  constexpr u32 distance = Blocks::size == 256 ? 32 : Blocks::size / 2;
  constexpr u32 n_threads = Blocks::size / (n * n_packs);  // of a block of numbers
  const i64 first_row = i64(blockIdx.y) * rows_at_once;
  const u8* row = blocks + blockIdx.x * n_blocks * Blocks::bytes;
  const i64 n_in = n_blocks * Blocks::size;
  float sums[rows_at_once] = {};
  for (i64 i = threadIdx.x; i < n_blocks * n_threads; i += blockDim.x) {
    const i64 block = i / n_threads;
    const u32 part = u32(i) % n_threads;
    const u32 first = part / (distance / n) * (n_packs * distance) + part % (distance / n) * n;
    const u8* b = row + block * Blocks::bytes;
    const Pack<float>* of_block = x + (first_row * n_in + block * Blocks::size + first) / n;
#pragma unroll
    for (u32 p = 0; p < n_packs; ++p) {
      float values[n];
#pragma unroll
      for (u32 k = 0; k < n; ++k) values[k] = Blocks::value(b, first | p * distance, k);
#pragma unroll
      for (int r = 0; r < rows_at_once; ++r) {
        if (first_row + r >= n_rows) break;
        const Pack<float> own = of_block[r * (n_in / n) + p * distance / n];
#pragma unroll
        for (u32 k = 0; k < n; ++k) sums[r] = fmaf(values[k], own.of[k], sums[r]);
      }
    }
  }
  __shared__ float shared[rows_at_once][n_threads_of_product];
#pragma unroll
  for (int r = 0; r < rows_at_once; ++r) shared[r][threadIdx.x] = sums[r];
  __syncthreads();
  for (int k = int(blockDim.x) / 2; k > 0; k /= 2) {
    if (int(threadIdx.x) < k)
#pragma unroll
      for (int r = 0; r < rows_at_once; ++r) shared[r][threadIdx.x] += shared[r][threadIdx.x + k];
    __syncthreads();
  }
  if (threadIdx.x != 0) return;
  for (int r = 0; r < rows_at_once && first_row + r < n_rows; ++r)
    y[(first_row + r) * gridDim.x + blockIdx.x] = shared[r][0];
}

}  // namespace

#define DECODE(type, Blocks, suffix, Type)                                                     \
  extern "C" __global__ void decode_##type##_##suffix(const u8* blocks, Pack<Type::Stored>* y, \
                                                      i64 n_packs) {                           \
    decode<Blocks, Type>(blocks, y, n_packs);                                                  \
  }
#define KERNELS(type, Blocks)                                                                  \
  DECODE(type, Blocks, float, Float)                                                           \
  DECODE(type, Blocks, bfloat16, BFloat16)                                                     \
  DECODE(type, Blocks, half, Half)                                                             \
  extern "C" __global__ void multiply_##type(const u8* blocks, const Pack<float>* x, float* y, \
                                             i64 n_blocks, i64 n_rows) {                       \
    multiply<Blocks>(blocks, x, y, n_blocks, n_rows);                                          \
  }
KERNELS(q8_0, Q8_0)
KERNELS(q4_0, Q4_0)
KERNELS(q4_1, Q4_1)
KERNELS(q5_0, Q5_0)
KERNELS(q5_1, Q5_1)
KERNELS(q2_k, Q2_K)
KERNELS(q3_k, Q3_K)
KERNELS(q4_k, Q4_K)
KERNELS(q5_k, Q5_K)
KERNELS(q6_k, Q6_K)
KERNELS(iq4_nl, Iq4Nl)
KERNELS(iq4_xs, Iq4Xs)
KERNELS(mxfp4, Mxfp4)
KERNELS(int8, Int8)
KERNELS(int4, Int4)
KERNELS(fp8, Fp8)
KERNELS(nf4, Nf4)
KERNELS(fp4, Fp4)
#undef KERNELS
#undef DECODE
