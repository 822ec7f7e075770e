// Launches the kernels of decode.cu.

#include "on_gpu.h"

#include "../cuda_kernels.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <string>

namespace redco::quantized {

extern const char* const decode_source;

namespace {

CudaKernels& kernels() {
  static CudaKernels kernels(decode_source);
  return kernels;
}

// The numbers of decode.cu.
constexpr int64_t rows_at_once = 4;
constexpr int n_threads_of_product = 64;

}  // namespace

void decode_on_gpu(const at::Tensor& blocks, const BlockType& type, const at::Tensor& y) {
  const char* suffix = kernel_suffix(y.scalar_type());
  TORCH_INTERNAL_ASSERT(suffix != nullptr && blocks.is_contiguous() && begins_at_pack(y));
  const void* from = blocks.const_data_ptr();
  void* to = y.mutable_data_ptr();
  int64_t n_packs = y.numel() * y.element_size() / pack_bytes;
  const int n_threads = threads_for(n_packs);
  void* arguments[] = {&from, &to, &n_packs};
  kernels().launch((std::string("decode_") + type.name + "_" + suffix).c_str(), y.device(),
                   {.x = (n_packs + n_threads - 1) / n_threads, .n_threads = n_threads}, arguments);
}

at::Tensor multiply_on_gpu(const at::Tensor& x, const at::Tensor& blocks, const BlockType& type) {
  TORCH_INTERNAL_ASSERT(x.scalar_type() == at::kFloat && blocks.is_contiguous());
  const at::Tensor rows =
      begins_at_pack(x) && x.is_contiguous() ? x : x.clone(at::MemoryFormat::Contiguous);
  const int64_t n_out = blocks.size(0);
  at::Tensor y = at::empty({x.size(0), n_out}, x.options());
  const void *of_blocks = blocks.const_data_ptr(), *of_x = rows.const_data_ptr();
  void* of_y = y.mutable_data_ptr();
  int64_t n_blocks = blocks.size(1), n_rows = x.size(0);
  void* arguments[] = {&of_blocks, &of_x, &of_y, &n_blocks, &n_rows};
  kernels().launch((std::string("multiply_") + type.name).c_str(), y.device(),
                   {.x = n_out,
                    .y = (n_rows + rows_at_once - 1) / rows_at_once,
                    .n_threads = n_threads_of_product},
                   arguments);
  return y;
}

}  // namespace redco::quantized
