// Computes LibTorch's float32 matrix products by oneDNN on AMD processors with AVX-512.
//
// LibTorch calls MKL, which has only AVX2 kernels for AMD processors. oneDNN, which is a part of
// LibTorch for convolutions and bfloat16, has AVX-512 kernels for all. Measured on one core of
// Zen 5, in GFLOP/s: 110 and 245. The dynamic linker finds these definitions of BLAS functions
// before those of LibTorch, because this library comes first.
#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/from_blob.h>

#include <dlfcn.h>
#include <algorithm>
#include <memory>

namespace at::native {
// Defined by LibTorch, declared in none of its headers: result = alpha a b + beta result, of
// matrices or batches of them. Operands are contiguous or transposed.
void mkldnn_matmul(const Tensor& a, const Tensor& b, const Tensor& result, float beta, float alpha);
}  // namespace at::native

namespace {

bool has_wider_kernels() {
#if defined(__x86_64__)
  static const bool found = __builtin_cpu_is("amd") && __builtin_cpu_supports("avx512f");
  return found && at::globalContext().userEnabledMkldnn();
#else
  return false;
#endif
}

bool is_transposed(char flag) { return flag != 'n' && flag != 'N'; }

// Matrices [rows, columns] of a batch, row-major. One stride of a matrix is 1.
struct Matrices {
  const float* data;
  int64_t n, rows, columns;
  int64_t of_matrix, of_row, of_column;  // strides
  std::unique_ptr<float[]> copy{};

  Matrices(const float* data, int64_t n, int64_t rows, int64_t columns, int64_t of_matrix,
           bool is_transposed, int64_t leading)
      : data(data),
        n(n),
        rows(rows),
        columns(columns),
        of_matrix(of_matrix),
        of_row(is_transposed ? 1 : leading),
        of_column(is_transposed ? leading : 1) {}

  int64_t outer() const { return of_column == 1 ? rows : columns; }
  int64_t inner() const { return of_column == 1 ? columns : rows; }
  int64_t& leading() { return of_column == 1 ? of_row : of_column; }

  // Removes gaps between rows, with which oneDNN's kernels are slower.
  void make_dense() {
    if (leading() == inner()) return;
    copy = std::make_unique_for_overwrite<float[]>(size_t(rows * columns));
    for (int64_t i = 0; i < outer(); ++i)
      std::copy_n(data + i * leading(), inner(), copy.get() + i * inner());
    data = copy.get();
    leading() = inner();
  }

  // Whether the matrices follow each other without gaps.
  bool is_dense() { return leading() == inner() && of_matrix == rows * columns; }

  at::Tensor tensor() const {
    auto* from = const_cast<float*>(data);
    if (n == 1) return at::from_blob(from, {rows, columns}, {of_row, of_column}, at::kFloat);
    return at::from_blob(from, {n, rows, columns}, {of_matrix, of_row, of_column}, at::kFloat);
  }
};

// Returns the distance between the matrices of a group, or -1 if there is no common one.
int64_t stride(const float* const* matrices, int64_t n) {
  if (n < 2) return -1;
  const int64_t distance = matrices[1] - matrices[0];
  for (int64_t i = 2; i < n; ++i)
    if (matrices[i] - matrices[i - 1] != distance) return -1;
  return distance;
}

// Whether to compute alpha a b by oneDNN. LibTorch's function does not write the result of 0 a b.
bool is_for_onednn(float alpha, const Matrices& a, const Matrices& b) {
  // With less, calling oneDNN takes longer than it saves.
  constexpr int64_t fewest_multiplications = 1 << 21;
  // It copies a transposed matrix first, which fewer rows of the other do not repay.
  constexpr int64_t fewest_rows = 64;
  return has_wider_kernels() && alpha != 0 &&
         a.n * a.rows * a.columns * b.columns >= fewest_multiplications &&
         (b.of_column == 1 || a.rows >= fewest_rows);
}

void multiply(float alpha, const Matrices& a, const Matrices& b, float beta, const Matrices& c) {
  at::AutoDispatchBelowADInplaceOrView below;
  at::native::mkldnn_matmul(a.tensor(), b.tensor(), c.tensor(), beta, alpha);
}

}  // namespace

extern "C" {

using Sgemm = void(const char*, const char*, const int*, const int*, const int*, const float*,
                   const float*, const int*, const float*, const int*, const float*, float*,
                   const int*);

// BLAS: C = alpha op(A) op(B) + beta C, column-major; row-major, C^T = op(B)^T op(A)^T.
[[gnu::visibility("default")]] void sgemm_(const char* trans_a, const char* trans_b, const int* m,
                                           const int* n, const int* k, const float* alpha,
                                           const float* a, const int* lda, const float* b,
                                           const int* ldb, const float* beta, float* c,
                                           const int* ldc) {
  Matrices left(b, 1, *n, *k, 0, is_transposed(*trans_b), *ldb);
  Matrices right(a, 1, *k, *m, 0, is_transposed(*trans_a), *lda);
  if (*ldc == *m && is_for_onednn(*alpha, left, right)) {
    left.make_dense();
    right.make_dense();
    return multiply(*alpha, left, right, *beta, Matrices(c, 1, *n, *m, 0, false, *ldc));
  }
  static const auto next = reinterpret_cast<Sgemm*>(dlsym(RTLD_NEXT, "sgemm_"));
  next(trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
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
  if (n_groups == 1 && layout == column_major) {
    const int64_t size = *group_size;
    Matrices left(*b, size, *n, *k, stride(b, size), *trans_b != not_transposed, *ldb);
    Matrices right(*a, size, *k, *m, stride(a, size), *trans_a != not_transposed, *lda);
    Matrices result(*c, size, *n, *m, stride(c, size), false, *ldc);
    if (left.is_dense() && right.is_dense() && result.is_dense() &&
        is_for_onednn(*alpha, left, right))
      return multiply(*alpha, left, right, *beta, result);
  }
  static const auto next = reinterpret_cast<SgemmBatch*>(dlsym(RTLD_NEXT, "cblas_sgemm_batch"));
  next(layout, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, n_groups,
       group_size);
}
}
