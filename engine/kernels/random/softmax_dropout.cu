// Softmax with dropout and its gradient on GPUs: the kernels of softmax_dropout.cpp, which
// are compiled where they run. A block of threads computes one row, in float; each element of the
// tensors is read from memory once, and then from the cache.

#include "../element_types.cuh"
#include "../packs.cuh"
#include "words.cuh"

namespace {

constexpr int most_threads = 256;

// Where the rows of a mask begin: an index in each outer dimension of the scores times its stride.
struct MaskRows {
  int n_dims;
  Dims sizes, strides;
};

__device__ i64 start_of(const MaskRows& rows, i64 row) {
  i64 start = 0;
#pragma unroll 1
  for (int d = rows.n_dims - 1; d >= 0; row /= rows.sizes.of[d--])
    start += row % rows.sizes.of[d] * rows.strides.of[d];
  return start;
}

// The larger of two numbers, or NaN.
__device__ float larger(float a, float b) { return b > a || b != b ? b : a; }

// Reduces a value of each thread of the block to the sum or the maximum. The number of threads is a
// power of two.
template <bool is_sum>
__device__ float over_block(float value) {
  __shared__ float parts[most_threads];
  parts[threadIdx.x] = value;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      const float other = parts[threadIdx.x + half];
      const float own = parts[threadIdx.x];
      parts[threadIdx.x] = is_sum ? own + other : larger(own, other);
    }
    __syncthreads();
  }
  const float result = parts[0];
  __syncthreads();
  return result;
}

__device__ float minus_infinity() { return -__int_as_float(0x7F800000); }

// A row of scores, with at most one of the two masks.
template <class Type>
struct Row {
  typedef Pack<typename Type::Stored> Packed;
  const Packed* scores;
  const bool* seen;
  const typename Type::Stored* added;
  float scale;

  __device__ float masked(const Packed& pack, i64 unit, int i) const {
    const i64 column = unit * Packed::n + i;
    if (seen != nullptr && !seen[column]) return minus_infinity();
    const float score = Type::wide(pack.of[i]) * scale;
    return added == nullptr ? score : score + Type::wide(added[column]);
  }
};

template <class Type>
__device__ void softmax_dropout(const typename Type::Stored* scores, const void* mask,
                                bool is_boolean, const MaskRows& mask_rows, float scale,
                                typename Type::Stored* probs, typename Type::Stored* dropped,
                                i64 n_units, const Words& words, u32 last, float kept) {
  typedef typename Row<Type>::Packed Packed;
  const i64 number = blockIdx.x, start = number * n_units;
  Row<Type> row = {reinterpret_cast<const Packed*>(scores) + start, nullptr, nullptr, scale};
  if (mask != nullptr && is_boolean)
    row.seen = static_cast<const bool*>(mask) + start_of(mask_rows, number);
  else if (mask != nullptr)
    row.added = static_cast<const typename Type::Stored*>(mask) + start_of(mask_rows, number);

  float most = minus_infinity();
  for (i64 unit = threadIdx.x; unit < n_units; unit += blockDim.x) {
    const Packed pack = row.scores[unit];
    for (int i = 0; i < Packed::n; ++i) most = larger(most, row.masked(pack, unit, i));
  }
  most = over_block<false>(most);
  const bool is_empty = most == minus_infinity();
  float sum = 0;
  for (i64 unit = threadIdx.x; unit < n_units; unit += blockDim.x) {
    const Packed pack = row.scores[unit];
    for (int i = 0; i < Packed::n; ++i) sum += expf(row.masked(pack, unit, i) - most);
  }
  sum = over_block<true>(sum);
  const float share = is_empty ? 0.0F : 1.0F / sum;

  const i64 n = n_units * Packed::n;
  const u64 place = u64(run_at(words, number * n, i64(gridDim.x) * n).place);
  for (i64 unit = threadIdx.x; unit < n_units; unit += blockDim.x) {
    const Packed pack = row.scores[unit];
    Packed all, left;
    Block block = {};
#pragma unroll
    for (int i = 0; i < Packed::n; ++i) {
      if (i % n_in_block<u32> == 0)
        block = philox((place + u64(unit * Packed::n + i)) / n_in_block<u32>, words.key);
      const float p = is_empty ? 0.0F : expf(row.masked(pack, unit, i) - most) * share;
      all.of[i] = Type::narrow(p);
      left.of[i] =
          Type::narrow(Type::wide(all.of[i]) * (bits_at<u32>(block, u64(i)) <= last ? kept : 0.0F));
    }
    reinterpret_cast<Packed*>(probs)[start + unit] = all;
    reinterpret_cast<Packed*>(dropped)[start + unit] = left;
  }
}

template <class Type>
__device__ void differentiate(const Pack<typename Type::Stored>* grad,
                              const Pack<typename Type::Stored>* probs,
                              const Pack<typename Type::Stored>* dropped,
                              Pack<typename Type::Stored>* d_scores, i64 n_units, float scale,
                              float kept) {
  typedef Pack<typename Type::Stored> Packed;
  const i64 start = i64(blockIdx.x) * n_units;
  float sum = 0;
  for (i64 unit = start + threadIdx.x; unit < start + n_units; unit += blockDim.x) {
    const Packed g = grad[unit], left = dropped[unit];
    for (int i = 0; i < Packed::n; ++i) sum += Type::wide(g.of[i]) * Type::wide(left.of[i]);
  }
  sum = over_block<true>(sum);
  for (i64 unit = start + threadIdx.x; unit < start + n_units; unit += blockDim.x) {
    Packed g = grad[unit];
    const Packed all = probs[unit], left = dropped[unit];
    for (int i = 0; i < Packed::n; ++i) {
      const float of_prob = Type::wide(left.of[i]) != 0.0F ? Type::wide(g.of[i]) * kept : 0.0F;
      g.of[i] = Type::narrow(Type::wide(all.of[i]) * (of_prob - sum) * scale);
    }
    d_scores[unit] = g;
  }
}

}  // namespace

#define KERNELS(type, Type)                                                                      \
  extern "C" __global__ void softmax_dropout_##type(                                             \
      const Type::Stored* scores, const void* mask, bool is_boolean, MaskRows mask_rows,         \
      float scale, Type::Stored* probs, Type::Stored* dropped, i64 n_units, Words words,         \
      u32 last, float kept) {                                                                    \
    softmax_dropout<Type>(scores, mask, is_boolean, mask_rows, scale, probs, dropped, n_units,   \
                          words, last, kept);                                                    \
  }                                                                                              \
  extern "C" __global__ void softmax_dropout_backward_##type(                                    \
      const Pack<Type::Stored>* grad, const Pack<Type::Stored>* probs,                           \
      const Pack<Type::Stored>* dropped, Pack<Type::Stored>* d_scores, i64 n_units, float scale, \
      float kept) {                                                                              \
    differentiate<Type>(grad, probs, dropped, d_scores, n_units, scale, kept);                   \
  }
KERNELS(float, Float)
KERNELS(bfloat16, BFloat16)
KERNELS(half, Half)
#undef KERNELS
