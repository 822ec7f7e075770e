// Products of a few rows with a matrix that exceeds the cache. Library kernels are made for many
// rows: they pack the matrix first, and with one row they do not saturate the memory bandwidth.
#include "few_rows.h"

#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cstring>

namespace redco::kernels {

namespace {

// A register of an instruction set.
template <int kWidth>
struct Register;
template <>
struct Register<4> {
  using Floats = float __attribute__((vector_size(16)));
  using Ints = uint32_t __attribute__((vector_size(16)));
  using Halves = uint16_t __attribute__((vector_size(8)));
};
template <>
struct Register<8> {
  using Floats = float __attribute__((vector_size(32)));
  using Ints = uint32_t __attribute__((vector_size(32)));
  using Halves = uint16_t __attribute__((vector_size(16)));
};
template <>
struct Register<16> {
  using Floats = float __attribute__((vector_size(64)));
  using Ints = uint32_t __attribute__((vector_size(64)));
  using Halves = uint16_t __attribute__((vector_size(32)));
};
template <int kWidth>
using Lanes = typename Register<kWidth>::Floats;

template <int kWidth>
inline __attribute__((always_inline)) void load(Lanes<kWidth>& lanes, const float* from) {
  std::memcpy(&lanes, from, sizeof(lanes));
}

// The bits of a bfloat16 are the upper half of a float's.
template <int kWidth>
inline __attribute__((always_inline)) void load(Lanes<kWidth>& lanes, const c10::BFloat16* from) {
  typename Register<kWidth>::Halves halves;
  std::memcpy(&halves, from, sizeof(halves));
  const auto bits = __builtin_convertvector(halves, typename Register<kWidth>::Ints) << 16;
  std::memcpy(&lanes, &bits, sizeof(lanes));
}

// Computation delays the processor's own loads, so data is prefetched. With one row and registers
// of 64 bytes there is too little computation, and prefetching slows it down.
template <int kWidth, int kRows>
inline __attribute__((always_inline)) void prefetch(const void* from) {
  if constexpr (kRows > 1 || kWidth < 16) __builtin_prefetch(from);
}

// Each output is the sum of this many partial sums, however wide the registers are, so that its
// value does not depend on them: i + 8, then i + 4, then i + 2, then i + 1 is added to i.
constexpr int n_partial = 16;

inline __attribute__((always_inline)) float sum(const Lanes<4>& b) {
  return (b[0] + b[2]) + (b[1] + b[3]);
}

inline __attribute__((always_inline)) float sum(const Lanes<8>& a) {
  Lanes<4> b =
      __builtin_shufflevector(a, a, 0, 1, 2, 3) + __builtin_shufflevector(a, a, 4, 5, 6, 7);
  return sum(b);
}

inline __attribute__((always_inline)) float sum(const Lanes<16>& all) {
  Lanes<8> a = __builtin_shufflevector(all, all, 0, 1, 2, 3, 4, 5, 6, 7) +
               __builtin_shufflevector(all, all, 8, 9, 10, 11, 12, 13, 14, 15);
  return sum(a);
}

inline __attribute__((always_inline)) float sum_parts(const Lanes<16> (&parts)[1]) {
  return sum(parts[0]);
}
inline __attribute__((always_inline)) float sum_parts(const Lanes<8> (&parts)[2]) {
  Lanes<8> a = parts[0] + parts[1];
  return sum(a);
}
inline __attribute__((always_inline)) float sum_parts(const Lanes<4> (&parts)[4]) {
  Lanes<4> b = (parts[0] + parts[2]) + (parts[1] + parts[3]);
  return sum(b);
}

// Computes outputs from `out` on, kOut at a time for kRows rows. Returns the first remaining
// output.
template <int kWidth, int kRows, int kOut, class T>
inline __attribute__((always_inline)) int64_t dots(const float* x, const T* w, float* y,
                                                   int64_t n_in, int64_t n_out, int64_t out,
                                                   int64_t end) {
  constexpr int n_parts = n_partial / kWidth;
  for (; out + kOut <= end; out += kOut) {
    Lanes<kWidth> sums[kOut][kRows][n_parts] = {};
    int64_t i = 0;
    for (; i + n_partial <= n_in; i += n_partial) {
      for (int part = 0; part < n_parts; ++part) {
        const int64_t first = i + part * kWidth;
        Lanes<kWidth> weights[kOut];
        for (int o = 0; o < kOut; ++o) {
          const T* piece = w + (out + o) * n_in + first;
          load<kWidth>(weights[o], piece);
          if (part == 0) prefetch<kWidth, kRows>(piece + kOut * n_in);
        }
        for (int r = 0; r < kRows; ++r) {
          Lanes<kWidth> values;
          load<kWidth>(values, x + r * n_in + first);
          for (int o = 0; o < kOut; ++o) sums[o][r][part] += weights[o] * values;
        }
      }
    }
    for (int o = 0; o < kOut; ++o) {
      for (int r = 0; r < kRows; ++r) {
        float total = sum_parts(sums[o][r]);
        for (int64_t k = i; k < n_in; ++k) total += w[(out + o) * n_in + k] * x[r * n_in + k];
        y[r * n_out + out + o] = total;
      }
    }
  }
  return out;
}

// The number of columns whose sums stay in the L1 cache.
constexpr int64_t block_columns = 512;

template <int kWidth, int kRows, class T>
inline __attribute__((always_inline)) void sums_of_rows(const float* x, const T* w, float* y,
                                                        int64_t n_in, int64_t n_out, int64_t begin,
                                                        int64_t end) {
  // Weights of kInputs inputs and 16 outputs at a time, in 8 registers.
  constexpr int kParts = 16 / kWidth, kInputs = 8 / kParts;
  alignas(64) float sums[kRows][block_columns];
  for (int64_t first = begin; first < end; first += block_columns) {
    const int64_t width = std::min(block_columns, end - first);
    for (int r = 0; r < kRows; ++r) std::fill_n(sums[r], width, 0.f);
    int64_t i = 0;
    for (; i + kInputs <= n_in; i += kInputs) {
      const T* from = w + i * n_out + first;
      int64_t column = 0;
      for (; column + 16 <= width; column += 16) {
        Lanes<kWidth> weights[kInputs][kParts];
        for (int k = 0; k < kInputs; ++k) {
          const T* piece = from + k * n_out + column;
          for (int part = 0; part < kParts; ++part)
            load<kWidth>(weights[k][part], piece + part * kWidth);
          prefetch<kWidth, kRows>(piece + kInputs * n_out);
        }
        for (int r = 0; r < kRows; ++r) {
          float* to = sums[r] + column;
          Lanes<kWidth> totals[kParts];
          for (int part = 0; part < kParts; ++part) load<kWidth>(totals[part], to + part * kWidth);
          for (int k = 0; k < kInputs; ++k)
            for (int part = 0; part < kParts; ++part)
              totals[part] += weights[k][part] * x[r * n_in + i + k];
          std::memcpy(to, totals, sizeof(totals));
        }
      }
      for (; column < width; ++column)
        for (int r = 0; r < kRows; ++r)
          for (int k = 0; k < kInputs; ++k)
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

template <class T>
using Kernel = void (*)(const float* x, const T* w, float* y, int64_t n_in, int64_t n_out,
                        int64_t begin, int64_t end);

// The kernels of an instruction set, by the number of rows.
template <class T>
struct Kernels {
  Kernel<T> of_1, of_4, of_8;
};

// Defines the kernels of an instruction set: the width of its registers, and how many outputs are
// computed at a time for 1, 4 and 8 rows. Their sums should fit in the registers.
#define REDCO_KERNELS(name, attribute, kWidth, kOut1, kOut4, kOut8)                      \
  struct name {                                                                          \
    template <class T, int kRows, int kOut>                                              \
    attribute static void by_outputs(const float* x, const T* w, float* y, int64_t n_in, \
                                     int64_t n_out, int64_t begin, int64_t end) {        \
      begin = dots<kWidth, kRows, kOut>(x, w, y, n_in, n_out, begin, end);               \
      dots<kWidth, kRows, 1>(x, w, y, n_in, n_out, begin, end);                          \
    }                                                                                    \
    template <class T, int kRows>                                                        \
    attribute static void by_inputs(const float* x, const T* w, float* y, int64_t n_in,  \
                                    int64_t n_out, int64_t begin, int64_t end) {         \
      sums_of_rows<kWidth, kRows>(x, w, y, n_in, n_out, begin, end);                     \
    }                                                                                    \
    template <class T>                                                                   \
    static constexpr Kernels<T> kernels[] = {                                            \
        {by_inputs<T, 1>, by_inputs<T, 4>, by_inputs<T, 8>},                             \
        {by_outputs<T, 1, kOut1>, by_outputs<T, 4, kOut4>, by_outputs<T, 8, kOut8>}};    \
  }

REDCO_KERNELS(Baseline, , 4, 2, 1, 1);

#if defined(__x86_64__)
REDCO_KERNELS(Avx2, __attribute__((target("avx2,fma"))), 8, 6, 2, 1);
REDCO_KERNELS(Avx512, __attribute__((target("avx512f,fma"))), 16, 8, 4, 2);
#endif

// Returns the kernels of this machine for W as [n_in, n_out], then for W as [n_out, n_in].
template <class T>
const Kernels<T>* find_kernels() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return Avx512::kernels<T>;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Avx2::kernels<T>;
#endif
  return Baseline::kernels<T>;
}

}  // namespace

int64_t few_rows_padded(int64_t rows) { return rows == 1 ? 1 : (rows + 3) / 4 * 4; }

template <class T>
void few_rows_linear(const float* x, const T* w, float* y, int64_t rows, int64_t n_in,
                     int64_t n_out, bool by_outputs, int64_t begin, int64_t end) {
  static const Kernels<T>* const kernels = find_kernels<T>();
  const Kernels<T>& kernel = kernels[by_outputs];
  // A part of the matrix that stays in the L2 cache until all rows are multiplied with it.
  const int64_t block = by_outputs ? 64 : block_columns;
  for (int64_t first = begin; first < end; first += block) {
    const int64_t last = std::min(first + block, end);
    for (int64_t row = 0, n; row < rows; row += n) {
      n = rows - row >= 8 ? 8 : rows - row >= 4 ? 4 : 1;
      const Kernel<T> run = n == 8 ? kernel.of_8 : n == 4 ? kernel.of_4 : kernel.of_1;
      run(x + row * n_in, w, y + row * n_out, n_in, n_out, first, last);
    }
  }
}

template void few_rows_linear(const float*, const float*, float*, int64_t, int64_t, int64_t, bool,
                              int64_t, int64_t);
template void few_rows_linear(const float*, const c10::BFloat16*, float*, int64_t, int64_t, int64_t,
                              bool, int64_t, int64_t);

}  // namespace redco::kernels
