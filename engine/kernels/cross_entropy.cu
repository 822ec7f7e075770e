// Cross-entropy on GPUs: the kernels of cross_entropy_kernel.cpp, which are compiled where they
// run. A block of threads computes one row.

#include "element_types.cuh"
#include "packs.cuh"

namespace {

__device__ float minus_infinity() { return __int_as_float(int(0xFF800000U)); }
__device__ float not_a_number() { return __int_as_float(0x7FC00000); }

// The maximum of a part of a row, and the sums of exp(x - most) and of x over the part.
struct Sums {
  float most, exps, all;
};

__device__ Sums added(Sums a, Sums b) {
  float most = fmaxf(a.most, b.most);
  float of_a = a.most == most ? 1.0F : expf(a.most - most);
  float of_b = b.most == most ? 1.0F : expf(b.most - most);
  return {most, a.exps * of_a + b.exps * of_b, a.all + b.all};
}

constexpr int most_threads = 512;  // of a block, a power of two

// Reduces the sums of all threads of the block; each thread gets the result.
__device__ Sums sums_of_block(Sums own) {
  __shared__ Sums sums[most_threads];
  sums[threadIdx.x] = own;
  __syncthreads();
  for (int n = int(blockDim.x) / 2; n > 0; n /= 2) {
    if (int(threadIdx.x) < n) sums[threadIdx.x] = added(sums[threadIdx.x], sums[threadIdx.x + n]);
    __syncthreads();
  }
  return sums[0];
}

// Rows of logits; the first n_classes columns are classes. Rows consist of whole packs.
template <class Type>
struct Rows {
  typedef Pack<typename Type::Stored> Packed;
  typename Type::Stored* logits;
  i64 n_classes, n_columns;

  __device__ i64 n_packs() const { return n_columns / Packed::n; }
  __device__ Packed* packs() const {
    return reinterpret_cast<Packed*>(logits + blockIdx.x * n_columns);
  }
};

// Computes log(sum(exp)) and the sum of each row.
template <class Type>
__device__ void reduce(const Rows<Type>& rows, float* normalizers, float* sums) {
  typedef typename Rows<Type>::Packed Packed;
  Sums own = {minus_infinity(), 0, 0};
  for (i64 p = threadIdx.x; p < rows.n_packs(); p += blockDim.x) {
    const Packed pack = rows.packs()[p];
    const i64 n_left = rows.n_classes - p * Packed::n;
    const int n = int(n_left < Packed::n ? n_left : Packed::n);
    Sums more = {minus_infinity(), 0, 0};
    // Loops of constant length: with a variable index, the pack would go through memory.
    for (int i = 0; i < Packed::n; ++i)
      if (i < n) more.most = fmaxf(more.most, Type::wide(pack.of[i]));
    for (int i = 0; i < Packed::n; ++i) {
      if (i >= n) break;
      float x = Type::wide(pack.of[i]);
      more.exps += x == minus_infinity() ? 0.0F : expf(x - more.most);
      more.all += x;
    }
    own = added(own, more);
  }
  own = sums_of_block(own);
  if (threadIdx.x != 0) return;
  normalizers[blockIdx.x] = own.most + logf(own.exps);
  sums[blockIdx.x] = own.all;
}

// The facts of each row.
struct Target {
  const i64* labels;
  const bool* missing;  // the label is none of these classes
  const bool* ignored;  // the row does not count
  const float *normalizers, *sums;
  float smoothing;
  i64 n_all;  // classes, of which these may be a part
};

// Replaces the logits with the gradients of their losses. A label out of range makes the gradients
// of its row NaN.
template <class Type>
__device__ void differentiate(const Rows<Type>& rows, const Target& target, float* losses,
                              bool needs_gradient) {
  typedef typename Rows<Type>::Packed Packed;
  const i64 row = blockIdx.x, label = target.missing[row] ? -1 : target.labels[row];
  const bool is_ignored = target.ignored[row];
  const bool is_wrong = !target.missing[row] && (label < 0 || label >= rows.n_classes);
  const float normalizer = is_wrong ? not_a_number() : target.normalizers[row];
  const float of_label = target.smoothing - 1.0F;
  const float of_all = target.smoothing / float(target.n_all);
  if (threadIdx.x == 0) {
    float loss = is_wrong ? not_a_number() : 0.0F;
    if (label >= 0 && !is_wrong)
      loss = of_label * (Type::wide(rows.logits[row * rows.n_columns + label]) - normalizer);
    if (target.smoothing > 0)
      loss -= of_all * (target.sums[row] - float(rows.n_classes) * normalizer);
    losses[row] = is_ignored ? 0.0F : loss;
  }
  if (!needs_gradient) return;
  __syncthreads();  // the label's logit has been read
  for (i64 p = threadIdx.x; p < rows.n_packs(); p += blockDim.x) {
    Packed pack = rows.packs()[p];
    for (int i = 0; i < Packed::n; ++i) {
      i64 column = p * Packed::n + i;
      float gradient = expf(Type::wide(pack.of[i]) - normalizer) - of_all;
      if (column == label) gradient += of_label;
      pack.of[i] = Type::narrow(is_ignored || column >= rows.n_classes ? 0.0F : gradient);
    }
    rows.packs()[p] = pack;
  }
}

}  // namespace

#define KERNELS(type, Type)                                                                  \
  extern "C" __global__ void reduce_##type(Rows<Type> rows, float* normalizers, float* sums) { \
    reduce(rows, normalizers, sums);                                                         \
  }                                                                                          \
  extern "C" __global__ void differentiate_##type(Rows<Type> rows, Target target,            \
                                                  float* losses, bool needs_gradient) {      \
    differentiate(rows, target, losses, needs_gradient);                                     \
  }
KERNELS(float, Float)
KERNELS(bfloat16, BFloat16)
KERNELS(half, Half)
#undef KERNELS
