// Launches the kernels of silu_mul.cu.

#include "silu_mul_kernel.h"

#include "cuda_kernels.h"

#include <cstdint>
#include <optional>
#include <string>

namespace redco::kernels {

extern const char* const silu_mul_source;  // silu_mul.cu

namespace {

// `GatedRows` of silu_mul.cu.
struct GatedRows {
  int64_t n_columns, gate_stride, up_stride;
};

// The tensor [rows, columns], if its rows are dense and consist of packs.
std::optional<at::Tensor> in_packs(const at::Tensor& tensor) {
  if (tensor.dim() == 0 || tensor.stride(-1) != 1) return std::nullopt;
  at::Tensor rows = tensor.flatten(0, -2);  // a copy if rows do not lie at one distance
  const int64_t size = rows.element_size();
  const bool are_packs = rows.size(1) * size % pack_bytes == 0 &&
                         rows.stride(0) * size % pack_bytes == 0 && begins_at_pack(rows);
  return are_packs ? std::optional(rows) : std::nullopt;
}

void launch(const std::string& kernel, const at::Tensor& gate, const at::Tensor& up,
            void** arguments, GatedRows& rows) {
  const int64_t per_pack = pack_bytes / gate.element_size();
  rows = {gate.size(1) / per_pack, gate.stride(0) / per_pack, up.stride(0) / per_pack};
  static CudaKernels kernels(silu_mul_source);
  kernels.launch((kernel + kernel_suffix(gate.scalar_type())).c_str(), gate.device(),
                 {.x = gate.size(0), .n_threads = threads_for(rows.n_columns)}, arguments);
}

}  // namespace

bool silu_mul_on_gpu(const at::Tensor& y, const at::Tensor& gate, const at::Tensor& up) {
  if (y.numel() == 0 || !has_kernels_for(y)) return false;
  const std::optional<at::Tensor> g = in_packs(gate), u = in_packs(up);
  if (!g || !u) return false;
  const void *of_gate = g->const_data_ptr(), *of_up = u->const_data_ptr();
  void* of_y = y.mutable_data_ptr();
  GatedRows rows{};
  void* arguments[] = {&of_gate, &of_up, &of_y, &rows};
  launch("silu_mul_", *g, *u, arguments, rows);
  return true;
}

bool silu_mul_backward_on_gpu(const at::Tensor& d_gate, const at::Tensor& d_up,
                              const at::Tensor& grad, const at::Tensor& gate,
                              const at::Tensor& up) {
  if (d_gate.numel() == 0 || !has_kernels_for(d_gate)) return false;
  const at::Tensor dense = grad.contiguous();
  const std::optional<at::Tensor> g = in_packs(gate), u = in_packs(up), of_y = in_packs(dense);
  if (!g || !u || !of_y) return false;
  const void *of_grad = of_y->const_data_ptr(), *of_gate = g->const_data_ptr(),
             *of_up = u->const_data_ptr();
  void *to_gate = d_gate.mutable_data_ptr(), *to_up = d_up.mutable_data_ptr();
  GatedRows rows{};
  void* arguments[] = {&of_grad, &of_gate, &of_up, &to_gate, &to_up, &rows};
  launch("silu_mul_backward_", *g, *u, arguments, rows);
  return true;
}

}  // namespace redco::kernels
