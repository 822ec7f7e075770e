// Launches the kernels of float8.cu.

#include "float8_kernel.h"

#include "cuda_kernels.h"

#include <cstdint>
#include <string>

namespace redco::kernels {

extern const char* const float8_source;  // float8.cu

namespace {

constexpr int64_t rows_of_thread = 16, columns_of_thread = 8;  // a pack of y, one of x

}  // namespace

bool to_float8_on_gpu(const at::Tensor& y, const at::Tensor& x, const at::Tensor& factor) {
  if (x.scalar_type() != at::kBFloat16 || !has_kernels_for(x)) return false;
  if (!x.is_contiguous()) {
    const at::Tensor columns = x.t();
    return columns.is_contiguous() && to_float8_on_gpu(y.t(), columns, factor);
  }
  const bool by_columns = !y.is_contiguous();
  int64_t n_rows = x.size(0), n_packs = x.size(1) / columns_of_thread;
  if (x.numel() == 0 || x.size(1) % columns_of_thread != 0 || !begins_at_pack(x) ||
      !begins_at_pack(y) ||
      (by_columns && (n_rows % rows_of_thread != 0 || !y.t().is_contiguous())))
    return false;
  const bool is_e4m3 = y.scalar_type() == at::kFloat8_e4m3fn;
  const std::string kernel =
      std::string(by_columns ? "columns_to_" : "rows_to_") + (is_e4m3 ? "e4m3" : "e5m2");
  const void *from = x.const_data_ptr(), *times = factor.const_data_ptr();
  void* to = y.mutable_data_ptr();
  int64_t n_all = n_rows * n_packs;
  void* of_rows[] = {&from, &times, &to, &n_all};
  void* of_columns[] = {&from, &times, &to, &n_rows, &n_packs};
  constexpr int64_t n_threads = 256;
  const int64_t n_items = by_columns ? n_all / rows_of_thread : n_all;
  static CudaKernels kernels(float8_source);
  kernels.launch(kernel.c_str(), x.device(),
                 {.x = (n_items + n_threads - 1) / n_threads, .n_threads = int(n_threads)},
                 by_columns ? of_columns : of_rows);
  return true;
}

}  // namespace redco::kernels
