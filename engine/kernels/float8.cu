// bfloat16 numbers times a factor, rounded to 8 bits, on GPUs: the kernels of float8_linear.cpp,
// which are compiled where they run.

#include "element_types.cuh"
#include "packs.cuh"

namespace {

typedef unsigned char u8;

// Numbers of a sign, an exponent and `n_fraction` bits (Micikevicius et al., 2022).
template <int n_fraction, int bias, u32 last, u32 beyond>
struct Float8 {
  // Rounds to the nearest, ties to even. A number above `last` becomes `beyond`.
  static __device__ u32 narrow(float x) {
    const u32 bits = u32(__float_as_int(x)), sign = bits >> 24 & 0x80U;
    u32 size = bits & 0x7FFFFFFFU;
    if (size > 0x7F800000U) return sign | 0x7FU;
    constexpr u32 least_normal = u32(128 - bias) << 23;
    if (size < least_normal) {
      // The last bit of the sum stands for the smallest number, so the addition rounds.
      constexpr u32 large = u32(127 + 24 - bias - n_fraction) << 23;
      const float sum = __int_as_float(int(size)) + __int_as_float(int(large));
      return sign | (u32(__float_as_int(sum)) - large);
    }
    size -= u32(127 - bias) << 23;
    size += (1U << (22 - n_fraction)) - 1U + (size >> (23 - n_fraction) & 1U);
    size >>= 23 - n_fraction;
    return sign | (size > last ? beyond : size);
  }
};
typedef Float8<3, 7, 0x7EU, 0x7FU> E4M3;  // without infinity
typedef Float8<2, 15, 0x7BU, 0x7CU> E5M2;

template <class Type>
__device__ void round_rows(const Pack<u16>* x, const float* factor, u64* y, i64 n_packs) {
  const float scale = *factor;
  i64 i = i64(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n_packs) return;
  const Pack<u16> from = x[i];
  u32 low = 0, high = 0;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    low |= Type::narrow(BFloat16::wide(from.of[k]) * scale) << 8 * k;
    high |= Type::narrow(BFloat16::wide(from.of[k + 4]) * scale) << 8 * k;
  }
  y[i] = u64(high) << 32 | low;
}

constexpr int tile_rows = Pack<u8>::n, tile_columns = Pack<u16>::n;

// x [rows, columns] to y [columns, rows]. A thread has 16 rows of 8 columns.
template <class Type>
__device__ void round_columns(const Pack<u16>* x, const float* factor, Pack<u32>* y, i64 n_rows,
                              i64 n_packs) {
  const float scale = *factor;
  const i64 i = i64(blockIdx.x) * blockDim.x + threadIdx.x;
  const i64 pack = i % n_packs, row = i / n_packs * tile_rows;
  if (row >= n_rows) return;
  Pack<u32> columns[tile_columns];
#pragma unroll
  for (int r = 0; r < tile_rows; ++r) {
    const Pack<u16> from = x[(row + r) * n_packs + pack];
#pragma unroll
    for (int c = 0; c < tile_columns; ++c) {
      const u32 byte = Type::narrow(BFloat16::wide(from.of[c]) * scale) << 8 * (r % 4);
      columns[c].of[r / 4] = r % 4 == 0 ? byte : columns[c].of[r / 4] | byte;
    }
  }
#pragma unroll
  for (int c = 0; c < tile_columns; ++c)
    y[((pack * tile_columns + c) * n_rows + row) / tile_rows] = columns[c];
}

}  // namespace

#define KERNELS(type, Type)                                                                      \
  extern "C" __global__ void rows_to_##type(const Pack<u16>* x, const float* factor, u64* y,     \
                                            i64 n_packs) {                                       \
    round_rows<Type>(x, factor, y, n_packs);                                                     \
  }                                                                                              \
  extern "C" __global__ void columns_to_##type(const Pack<u16>* x, const float* factor,          \
                                               Pack<u32>* y, i64 n_rows, i64 n_packs) {          \
    round_columns<Type>(x, factor, y, n_rows, n_packs);                                          \
  }
KERNELS(e4m3, E4M3)
KERNELS(e5m2, E5M2)
#undef KERNELS
