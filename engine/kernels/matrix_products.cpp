// Computes LibTorch's float32 matrix products with oneDNN on AMD processors with AVX-512.
//
// LibTorch calls MKL, which uses its AVX2 kernels on AMD processors. oneDNN, which LibTorch
// contains for convolutions and bfloat16, has AVX-512 kernels for all processors. Measured on one
// core of Zen 5, in GFLOP/s: 110 with MKL and 245 with oneDNN. The dynamic linker finds these
// definitions of BLAS functions before those of LibTorch, because this library comes first. A
// definition of mkl_serv_intel_cpu_true that returns 1 makes MKL use its AVX-512 kernels, too: on a
// Zen 4 both ways are equally fast. They have not been compared on a Zen 5.
#include "../core/libtorch_versions.h"

#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/from_blob.h>

#include <dlfcn.h>
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <utility>

namespace {

void multiply(const at::Tensor& a, const at::Tensor& b, const at::Tensor& result, float beta,
              float alpha) {
  at::AutoDispatchBelowADInplaceOrView below;
  at::native::mkldnn_matmul(a, b, result, beta, alpha);
}

// Whether LibTorch has the function, and oneDNN may use AVX-512: ONEDNN_MAX_CPU_ISA can forbid
// AVX-512, and the function then raises an error.
bool allows_avx512() {
  if (&at::native::mkldnn_matmul == nullptr) return false;
  float one = 1;
  const at::Tensor matrix = at::from_blob(&one, {1, 1}, at::kFloat);
  try {
    multiply(matrix, matrix, matrix, 0, 1);
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

bool has_wider_kernels() {
#if defined(__x86_64__)
  static const bool is_asked_for = std::getenv("REDCO_ONEDNN_PRODUCTS") != nullptr;  // by tests
  static const bool found = (__builtin_cpu_is("amd") || is_asked_for) &&
                            __builtin_cpu_supports("avx512f") && allows_avx512();
  return found && at::globalContext().userEnabledMkldnn();
#else
  return false;
#endif
}

bool is_transposed(char flag) { return flag != 'n' && flag != 'N'; }

// Matrices [rows, columns] of a batch. One stride of a matrix is 1, the other one `leading`.
struct Matrices {
  float* data;
  int64_t n, rows, columns;
  int64_t of_matrix;  // stride
  bool is_row_major;
  int64_t leading;

  int64_t of_row() const { return is_row_major ? leading : 1; }
  int64_t of_column() const { return is_row_major ? 1 : leading; }
  // Whether the matrices follow each other, and their rows too, without gaps.
  bool is_dense() const {
    return leading == (is_row_major ? columns : rows) && of_matrix == rows * columns;
  }

  Matrices part_of_rows(int64_t first, int64_t count) const {
    Matrices part = *this;
    part.data += first * of_row();
    part.rows = count;
    return part;
  }
  Matrices part_of_columns(int64_t first, int64_t count) const {
    Matrices part = *this;
    part.data += first * of_column();
    part.columns = count;
    return part;
  }

  at::Tensor tensor() const {
    if (n == 1) return at::from_blob(data, {rows, columns}, {of_row(), of_column()}, at::kFloat);
    return at::from_blob(data, {n, rows, columns}, {of_matrix, of_row(), of_column()}, at::kFloat);
  }
};

// c = alpha a b + beta c
struct Product {
  float alpha;
  Matrices a, b;
  float beta;
  Matrices c;

  int64_t multiplications() const { return a.n * a.rows * a.columns * b.columns; }
};

// Whether oneDNN is faster. LibTorch's function does not write the result if alpha is 0.
//
// The kernels of oneDNN and MKL round differently, and processes that hold copies of a weight must
// compute the same. So only the sizes and the layout of a product decide, here and below, and never
// the state of one process.
bool is_for_onednn(const Product& p) {
  // With less, calling oneDNN takes longer than it saves.
  constexpr int64_t fewest_multiplications = 1 << 21;
  // oneDNN copies a transposed matrix first, which does not pay off with fewer rows of the other
  // matrix.
  constexpr int64_t fewest_rows = 64;
  return has_wider_kernels() && p.alpha != 0 && p.multiplications() >= fewest_multiplications &&
         (p.b.is_row_major || p.a.rows >= fewest_rows);
}

// oneDNN makes a kernel for each size and layout of a product, in a millisecond, and keeps half a
// megabyte for each. Lengths of texts give thousands of sizes, so oneDNN gets only round sizes.
bool is_round(const Product& p) {
  constexpr int64_t grain = 32;
  return p.a.rows % grain == 0 && p.a.columns % grain == 0 && p.b.columns % grain == 0;
}

void compute_by_onednn(const Product& p) {
  multiply(p.a.tensor(), p.b.tensor(), p.c.tensor(), p.beta, p.alpha);
}

using Sgemm = void(const char*, const char*, const int*, const int*, const int*, const float*,
                   const float*, const int*, const float*, const int*, const float*, float*,
                   const int*);

// BLAS is column-major: it computes c^T = b^T a^T.
void compute_by_mkl(const Product& p) {
  static const auto next = reinterpret_cast<Sgemm*>(dlsym(RTLD_NEXT, "sgemm_"));
  const char *trans_a = p.a.is_row_major ? "n" : "t", *trans_b = p.b.is_row_major ? "n" : "t";
  const int m = int(p.b.columns), n = int(p.a.rows), k = int(p.a.columns);
  const int lda = int(p.a.leading), ldb = int(p.b.leading), ldc = int(p.c.leading);
  next(trans_b, trans_a, &m, &n, &k, &p.alpha, p.b.data, &ldb, p.a.data, &lda, &p.beta, p.c.data,
       &ldc);
}

// Computes a product in parts of a few sizes, since the number of examples varies. Examples are the
// rows of a layer's input; for the gradient of a weight they are the columns of a, which is
// transposed.
void compute_in_parts(const Product& p) {
  const bool is_gradient = !p.a.is_row_major;
  const int64_t n_examples = is_gradient ? p.a.columns : p.a.rows;
  // Only products with a weight have fixed sizes. Those of attention vary, and are mostly smaller.
  constexpr int64_t least_weight = 1 << 16;
  const bool has_weight = p.multiplications() >= n_examples * least_weight;
  const auto part = [&](int64_t first, int64_t count) {
    Product result = p;
    if (is_gradient) {
      result.a = p.a.part_of_columns(first, count);
      result.b = p.b.part_of_rows(first, count);
      if (first > 0) result.beta = 1;
    } else {
      result.a = p.a.part_of_rows(first, count);
      result.c = p.c.part_of_rows(first, count);
    }
    return result;
  };
  int64_t first = 0;
  for (int64_t count : {512, 256, 128, 64, 32})
    for (; n_examples - first >= count; first += count) {
      const Product some = part(first, count);
      if (is_for_onednn(some) && (has_weight || is_round(some)))
        compute_by_onednn(some);
      else
        compute_by_mkl(some);
    }
  if (first < n_examples) compute_by_mkl(part(first, n_examples - first));
}

// Copies a matrix without the gaps between its rows, because gaps slow oneDNN's kernels down.
// Returns the memory of the copy, or null if there are no gaps.
std::unique_ptr<float[]> make_dense(Matrices& m) {
  const auto [outer, inner] =
      m.is_row_major ? std::pair(m.rows, m.columns) : std::pair(m.columns, m.rows);
  if (m.leading == inner) return nullptr;
  auto copy = std::make_unique_for_overwrite<float[]>(size_t(outer * inner));
  for (int64_t i = 0; i < outer; ++i)
    std::copy_n(m.data + i * m.leading, inner, copy.get() + i * inner);
  m.data = copy.get();
  m.leading = inner;
  return copy;
}

// Returns the distance between the matrices of a group, or -1 if there is no common one.
int64_t stride(const float* const* matrices, int64_t n) {
  if (n < 2) return -1;
  const int64_t distance = matrices[1] - matrices[0];
  for (int64_t i = 2; i < n; ++i)
    if (matrices[i] - matrices[i - 1] != distance) return -1;
  return distance;
}

}  // namespace

extern "C" {

// BLAS: C = alpha op(A) op(B) + beta C, column-major.
[[gnu::visibility("default")]] void sgemm_(const char* trans_a, const char* trans_b, const int* m,
                                           const int* n, const int* k, const float* alpha,
                                           const float* a, const int* lda, const float* b,
                                           const int* ldb, const float* beta, float* c,
                                           const int* ldc) {
  Product p{*alpha,
            {const_cast<float*>(b), 1, *n, *k, 0, !is_transposed(*trans_b), *ldb},
            {const_cast<float*>(a), 1, *k, *m, 0, !is_transposed(*trans_a), *lda},
            *beta,
            {c, 1, *n, *m, 0, true, *ldc}};
  if (*ldc != *m || !is_for_onednn(p)) return compute_by_mkl(p);
  const auto copy_of_a = make_dense(p.a), copy_of_b = make_dense(p.b);
  compute_in_parts(p);
}

using SgemmBatch = void(int, const int*, const int*, const int*, const int*, const int*,
                        const float*, const float* const*, const int*, const float* const*,
                        const int*, const float*, float* const*, const int*, int, const int*);

// MKL's extension of BLAS, for groups of matrices with the same sizes.
[[gnu::visibility("default")]] void cblas_sgemm_batch(
    int layout, const int* trans_a, const int* trans_b, const int* m, const int* n, const int* k,
    const float* alpha, const float* const* a, const int* lda, const float* const* b,
    const int* ldb, const float* beta, float* const* c, const int* ldc, int n_groups,
    const int* group_size) {
  constexpr int column_major = 102, not_transposed = 111;
  if (has_wider_kernels() && n_groups == 1 && layout == column_major) {
    const int64_t size = *group_size;
    const auto matrices = [&](const float* const* all, const int* rows, const int* columns,
                              bool is_row_major, const int* leading) {
      return Matrices{const_cast<float*>(*all), size,         *rows,   *columns,
                      stride(all, size),        is_row_major, *leading};
    };
    const Product p{*alpha, matrices(b, n, k, *trans_b == not_transposed, ldb),
                    matrices(a, k, m, *trans_a == not_transposed, lda), *beta,
                    matrices(c, n, m, true, ldc)};
    if (p.a.is_dense() && p.b.is_dense() && p.c.is_dense() && is_round(p) && is_for_onednn(p))
      return compute_by_onednn(p);
  }
  static const auto next = reinterpret_cast<SgemmBatch*>(dlsym(RTLD_NEXT, "cblas_sgemm_batch"));
  next(layout, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, n_groups,
       group_size);
}
}
