// silu(gate) * up as one operator.

#include "cuda_kernels.h"

#include <redco/detail/operator_interceptor.h>
#include <redco/nn.h>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace redco::kernels {

extern const char* const silu_mul_source;  // silu_mul.cu

namespace {

// Mirrors `GatedRows` of silu_mul.cu.
struct GatedRows {
  int64_t n_columns, gate_stride, up_stride;
};

// The tensor [rows, columns], if its rows are dense and consist of packs.
std::optional<at::Tensor> in_packs(const at::Tensor& tensor) {
  if (tensor.dim() == 0 || tensor.stride(-1) != 1) return std::nullopt;
  at::Tensor rows = tensor.flatten(0, -2);  // a copy if rows have no common stride
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

// Computes silu(gate) * up with one GPU kernel, into y, which is dense. Returns false and does
// nothing if there is no kernel: for other types, for rows that do not fill units of 16 bytes, and
// without NVRTC.
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

// The same for the gradients of gate and up, which are dense.
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

}  // namespace

}  // namespace redco::kernels

namespace redco {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Elements that stay in a core's cache while several operators read and write them.
constexpr int64_t cached_size = 1 << 13;

// Reshapes all tensors in the same way to [n, ...], so that parts of the first dimension have few
// elements. Rows are dense, as in a half of a joined projection.
std::vector<at::Tensor> as_cached_rows(const std::vector<at::Tensor>& tensors) {
  const bool are_contiguous =
      std::ranges::all_of(tensors, [](const at::Tensor& tensor) { return tensor.is_contiguous(); });
  std::vector<at::Tensor> rows;
  for (const at::Tensor& tensor : tensors) {
    if (are_contiguous)
      rows.push_back(tensor.view({-1}));
    else
      rows.push_back((tensor.stride(-1) == 1 ? tensor : tensor.contiguous()).flatten(0, -2));
  }
  return rows;
}

// Calls `function` with parts of the tensors, which have the same sizes. Parts that are only read
// may be copies.
template <class Function>
void for_cached_parts(const std::vector<at::Tensor>& tensors, const Function& function) {
  if (tensors[0].numel() == 0) return;
  const std::vector<at::Tensor> rows = as_cached_rows(tensors);
  const int64_t n = rows[0].size(0);
  const int64_t length = std::max<int64_t>(1, cached_size / (rows[0].numel() / n));
  at::parallel_for(0, (n + length - 1) / length, 1, [&](int64_t begin, int64_t end) {
    at::AutoDispatchBelowAutograd below;
    std::vector<at::Tensor> part(rows.size());
    for (int64_t i = begin; i < end; ++i) {
      for (size_t j = 0; j < rows.size(); ++j)
        part[j] = rows[j].narrow(0, i * length, std::min(length, n - i * length));
      function(part);
    }
  });
}

// The product of local tensors. On a CPU, LibTorch's kernels compute part after part, so that
// intermediate results stay in the cache.
at::Tensor gated_product(const at::Tensor& gate, const at::Tensor& up) {
  at::Tensor y = at::empty_like(gate, at::MemoryFormat::Contiguous);
  if (y.is_meta()) return y;
  if (kernels::silu_mul_on_gpu(y, gate, up)) return y;
  if (!y.is_cpu()) return at::mul_out(y, at::silu(gate), up);
  for_cached_parts({gate, up, y}, [](std::vector<at::Tensor>& part) {
    at::silu_out(part[2], part[0]);
    part[2].mul_(part[1]);
  });
  return y;
}

std::tuple<at::Tensor, at::Tensor> gated_gradients(const at::Tensor& grad, const at::Tensor& gate,
                                                   const at::Tensor& up) {
  at::Tensor d_gate = at::empty_like(gate, at::MemoryFormat::Contiguous),
             d_up = at::empty_like(d_gate);
  if (d_gate.is_meta()) return {d_gate, d_up};
  if (kernels::silu_mul_backward_on_gpu(d_gate, d_up, grad, gate, up)) return {d_gate, d_up};
  if (!d_gate.is_cpu()) {
    at::mul_out(d_up, at::silu(gate), grad);
    at::silu_backward_out(d_gate, grad.mul(up), gate);
    return {d_gate, d_up};
  }
  for_cached_parts({grad, gate, up, d_gate, d_up}, [](std::vector<at::Tensor>& part) {
    at::mul_out(part[4], part[0], part[2]);
    at::silu_backward_out(part[3], part[4], part[1]);
    at::silu_out(part[4], part[1]);
    part[4].mul_(part[0]);
  });
  return {d_gate, d_up};
}

TORCH_LIBRARY_FRAGMENT(redco, m) {
  m.def("silu_mul(Tensor gate, Tensor up) -> Tensor", {at::Tag::pointwise});
  m.def("silu_mul_backward(Tensor grad, Tensor gate, Tensor up) -> (Tensor, Tensor)",
        {at::Tag::pointwise});
  m.impl("silu_mul", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, &gated_product));
  m.impl("silu_mul_backward",
         torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, &gated_gradients));
}

class SiluMul : public torch::autograd::Function<SiluMul> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate, const at::Tensor& up) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("redco::silu_mul", "")
                               .typed<decltype(gated_product)>();
    ctx->save_for_backward({gate, up});
    return op.call(gate, up);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &gate = saved[0], &up = saved[1];
    if (at::GradMode::is_enabled()) {  // it may be differentiated again
      const at::Tensor sigmoid = gate.sigmoid(), silu = gate * sigmoid;
      return {grads[0] * up * (sigmoid + silu * (1 - sigmoid)), grads[0] * silu};
    }
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("redco::silu_mul_backward", "")
                               .typed<decltype(gated_gradients)>();
    auto [d_gate, d_up] = op.call(grads[0], gate, up);
    return {d_gate, d_up};
  }
};

}  // namespace

at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up) {
  // Transforms such as vmap know LibTorch's operators only.
  const bool is_alike = gate.sizes() == up.sizes() && gate.scalar_type() == up.scalar_type() &&
                        gate.device() == up.device() && gate.is_floating_point();
  if (!is_alike || at::functorch::maybeCurrentDynamicLayer()) return at::silu(gate) * up;
  const variable_list tensors = intercepted({gate, up});
  return SiluMul::apply(tensors[0], tensors[1]);
}

}  // namespace redco
