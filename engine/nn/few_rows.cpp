// Products of a few rows with a matrix that exceeds the cache. Library kernels are made for many
// rows: they pack the matrix first, and with one row they do not saturate the memory bandwidth.
#include "few_rows.h"

#include <algorithm>
#include <cstring>

// Like REDCO_VECTORIZE, with fused multiply-add: see this file's compile options.
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define REDCO_FUSED __attribute__((target_clones("avx512f", "arch=haswell", "default")))
#else
#define REDCO_FUSED
#endif

namespace redco::nn {

namespace {

constexpr int64_t n_lanes = 16;
using Lanes = float __attribute__((vector_size(n_lanes * sizeof(float))));

inline __attribute__((always_inline)) void load(Lanes& lanes, const float* from) {
  std::memcpy(&lanes, from, sizeof(lanes));
}

using Half = float __attribute__((vector_size(n_lanes / 2 * sizeof(float))));
using Quarter = float __attribute__((vector_size(n_lanes / 4 * sizeof(float))));

inline __attribute__((always_inline)) float sum(const Lanes& lanes) {
  Half a = __builtin_shufflevector(lanes, lanes, 0, 1, 2, 3, 4, 5, 6, 7) +
           __builtin_shufflevector(lanes, lanes, 8, 9, 10, 11, 12, 13, 14, 15);
  Quarter b = __builtin_shufflevector(a, a, 0, 1, 2, 3) + __builtin_shufflevector(a, a, 4, 5, 6, 7);
  return (b[0] + b[2]) + (b[1] + b[3]);
}

// With several rows the computation delays the processor's own loads, so data is prefetched. With
// one row prefetching slows it down.
template <int kRows>
inline __attribute__((always_inline)) void prefetch(const float* from) {
  if constexpr (kRows > 1) __builtin_prefetch(from);
}

// Computes outputs from `out` on, kOut at a time for kRows rows: as many sums as there are
// registers. Returns the first remaining output.
template <int kRows, int kOut>
inline __attribute__((always_inline)) int64_t dots(const float* x, const float* w, float* y,
                                                   int64_t n_in, int64_t n_out, int64_t out,
                                                   int64_t end) {
  for (; out + kOut <= end; out += kOut) {
    Lanes sums[kOut][kRows] = {};
    int64_t i = 0;
    for (; i + n_lanes <= n_in; i += n_lanes) {
      Lanes weights[kOut];
      for (int o = 0; o < kOut; ++o) {
        const float* row = w + (out + o) * n_in + i;
        load(weights[o], row);
        prefetch<kRows>(row + kOut * n_in);
      }
      for (int r = 0; r < kRows; ++r) {
        Lanes values;
        load(values, x + r * n_in + i);
        for (int o = 0; o < kOut; ++o) sums[o][r] += weights[o] * values;
      }
    }
    for (int o = 0; o < kOut; ++o) {
      for (int r = 0; r < kRows; ++r) {
        float total = sum(sums[o][r]);
        for (int64_t k = i; k < n_in; ++k) total += w[(out + o) * n_in + k] * x[r * n_in + k];
        y[r * n_out + out + o] = total;
      }
    }
  }
  return out;
}

// The number of columns whose sums stay in the L1 cache.
constexpr int64_t block_columns = 512;
constexpr int block_inputs = 8;

template <int kRows>
inline __attribute__((always_inline)) void sums_of_rows(const float* x, const float* w, float* y,
                                                        int64_t n_in, int64_t n_out, int64_t begin,
                                                        int64_t end) {
  alignas(64) float sums[kRows][block_columns];
  for (int64_t first = begin; first < end; first += block_columns) {
    const int64_t width = std::min(block_columns, end - first);
    for (int r = 0; r < kRows; ++r) std::fill_n(sums[r], width, 0.f);
    int64_t i = 0;
    for (; i + block_inputs <= n_in; i += block_inputs) {
      const float* from = w + i * n_out + first;
      int64_t column = 0;
      for (; column + n_lanes <= width; column += n_lanes) {
        Lanes weights[block_inputs];
        for (int k = 0; k < block_inputs; ++k) {
          const float* piece = from + k * n_out + column;
          load(weights[k], piece);
          prefetch<kRows>(piece + block_inputs * n_out);
        }
        for (int r = 0; r < kRows; ++r) {
          Lanes total;
          load(total, sums[r] + column);
          for (int k = 0; k < block_inputs; ++k) total += weights[k] * x[r * n_in + i + k];
          std::memcpy(sums[r] + column, &total, sizeof(total));
        }
      }
      for (; column < width; ++column)
        for (int r = 0; r < kRows; ++r)
          for (int k = 0; k < block_inputs; ++k)
            sums[r][column] += from[k * n_out + column] * x[r * n_in + i + k];
    }
    for (; i < n_in; ++i)
      for (int r = 0; r < kRows; ++r)
        for (int64_t column = 0; column < width; ++column)
          sums[r][column] += w[i * n_out + first + column] * x[r * n_in + i];
    for (int r = 0; r < kRows; ++r)
      std::memcpy(y + r * n_out + first, sums[r], size_t(width) * sizeof(float));
  }
}

using Kernel = void (*)(const float* x, const float* w, float* y, int64_t n_in, int64_t n_out,
                        int64_t begin, int64_t end);

REDCO_FUSED void dots_of_1(const float* x, const float* w, float* y, int64_t n_in, int64_t n_out,
                           int64_t begin, int64_t end) {
  begin = dots<1, 8>(x, w, y, n_in, n_out, begin, end);
  dots<1, 1>(x, w, y, n_in, n_out, begin, end);
}

REDCO_FUSED void dots_of_4(const float* x, const float* w, float* y, int64_t n_in, int64_t n_out,
                           int64_t begin, int64_t end) {
  begin = dots<4, 4>(x, w, y, n_in, n_out, begin, end);
  dots<4, 1>(x, w, y, n_in, n_out, begin, end);
}

REDCO_FUSED void dots_of_8(const float* x, const float* w, float* y, int64_t n_in, int64_t n_out,
                           int64_t begin, int64_t end) {
  begin = dots<8, 2>(x, w, y, n_in, n_out, begin, end);
  dots<8, 1>(x, w, y, n_in, n_out, begin, end);
}

REDCO_FUSED void sums_of_1(const float* x, const float* w, float* y, int64_t n_in, int64_t n_out,
                           int64_t begin, int64_t end) {
  sums_of_rows<1>(x, w, y, n_in, n_out, begin, end);
}

REDCO_FUSED void sums_of_4(const float* x, const float* w, float* y, int64_t n_in, int64_t n_out,
                           int64_t begin, int64_t end) {
  sums_of_rows<4>(x, w, y, n_in, n_out, begin, end);
}

REDCO_FUSED void sums_of_8(const float* x, const float* w, float* y, int64_t n_in, int64_t n_out,
                           int64_t begin, int64_t end) {
  sums_of_rows<8>(x, w, y, n_in, n_out, begin, end);
}

struct Kernels {
  Kernel of_1, of_4, of_8;
};

}  // namespace

int64_t few_rows_padded(int64_t rows) { return rows == 1 ? 1 : (rows + 3) / 4 * 4; }

void few_rows_linear(const float* x, const float* w, float* y, int64_t rows, int64_t n_in,
                     int64_t n_out, bool by_outputs, int64_t begin, int64_t end) {
  constexpr Kernels kernels[] = {{sums_of_1, sums_of_4, sums_of_8},
                                 {dots_of_1, dots_of_4, dots_of_8}};
  const Kernels& kernel = kernels[by_outputs];
  // A part of the matrix that stays in the L2 cache until all rows are multiplied with it.
  const int64_t block = by_outputs ? 64 : block_columns;
  for (int64_t first = begin; first < end; first += block) {
    const int64_t last = std::min(first + block, end);
    for (int64_t row = 0, n; row < rows; row += n) {
      n = rows - row >= 8 ? 8 : rows - row >= 4 ? 4 : 1;
      const Kernel run = n == 8 ? kernel.of_8 : n == 4 ? kernel.of_4 : kernel.of_1;
      run(x + row * n_in, w, y + row * n_out, n_in, n_out, first, last);
    }
  }
}

}  // namespace redco::nn
