// Attention of few queries in bfloat16, as in generation: LibTorch's kernel for CPUs first packs
// keys and values as for many queries, which takes 3 to 14 times as long.

#include <redco/detail/few_queries.h>

#include "few_rows.h"
#include "training_kernels.h"

#include <ATen/Parallel.h>
#include <ATen/ops/_safe_softmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace redco {

using namespace kernels;

namespace {

constexpr int64_t most_queries = 16;
constexpr int64_t n_of_thread = 1 << 15;  // elements of keys or values for a thread

bool is_local(const at::Tensor& t) { return !t.key_set().has(c10::DispatchKey::Fake); }

// Whether the matrix [positions, elements] of each head is contiguous.
bool has_dense_heads(const at::Tensor& t) { return t.stride(3) == 1 && t.stride(2) == t.size(3); }

// Computes y = x W^T (`by_outputs`) or y = x W with the matrix W of each head, in bfloat16.
void multiply_heads(const at::Tensor& x, const at::Tensor& w, const at::Tensor& y,
                    bool by_outputs) {
  const int64_t n_heads = w.size(1), rows = x.size(2), n_in = x.size(3), n_out = y.size(3);
  const auto* x_data = x.const_data_ptr<float>();
  const auto* w_data = w.const_data_ptr<c10::BFloat16>();
  auto* y_data = y.mutable_data_ptr<float>();
  // Outputs that a thread computes at a time. Heads are divided, because there may be fewer heads
  // than threads.
  const int64_t width = by_outputs ? 256 : 64, n_parts = (n_out + width - 1) / width;
  const int64_t least = std::max<int64_t>(1, n_of_thread / (width * n_in));
  at::parallel_for(0, w.size(0) * n_heads * n_parts, least, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t head = i / n_parts, first = i % n_parts * width;
      const auto* matrix = w_data + head / n_heads * w.stride(0) + head % n_heads * w.stride(1);
      few_rows_linear(x_data + head * rows * n_in, matrix, y_data + head * rows * n_out, rows, n_in,
                      n_out, by_outputs, first, std::min(first + width, n_out));
    }
  });
}

// A mask that is added to scores.
at::Tensor additive_mask(const at::Tensor& mask) {
  if (mask.scalar_type() != at::kBool) return mask.to(at::kFloat);
  return at::zeros(mask.sizes(), mask.options().dtype(at::kFloat))
      .masked_fill_(mask.logical_not(), -std::numeric_limits<double>::infinity());
}

// Sums are in float32.
at::Tensor of_few_queries(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const std::optional<at::Tensor>& mask, double scale) {
  const int64_t batch = q.size(0), n_heads = q.size(1), n = q.size(2), rows = few_rows_padded(n);
  const auto options = q.options().dtype(at::kFloat);
  const at::Tensor queries = at::zeros({batch, n_heads, rows, q.size(3)}, options);
  queries.narrow(2, 0, n).copy_(q).mul_(scale);
  const at::Tensor scores = at::empty({batch, n_heads, rows, k.size(2)}, options);
  multiply_heads(queries, k, scores, true);
  if (mask) scores.narrow(2, 0, n).add_(additive_mask(*mask));
  const at::Tensor y = at::empty({batch, n_heads, rows, v.size(3)}, options);
  multiply_heads(at::_safe_softmax(scores, -1), v, y, false);
  return y.narrow(2, 0, n).to(q.scalar_type());
}

bool are_few_queries(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const std::optional<at::Tensor>& mask) {
  if (q.dim() != 4 || k.dim() != 4 || v.dim() != 4) return false;
  if (!q.is_cpu() || !is_local(q) || !is_local(k) || !is_local(v)) return false;
  if (TrainingKernels::are_needed({&q, &k, &v, mask ? &*mask : nullptr})) return false;
  for (const at::Tensor* t : {&q, &k, &v})
    if (t->scalar_type() != at::kBFloat16) return false;
  const bool fit = q.size(0) == k.size(0) && q.size(1) == k.size(1) && q.size(3) == k.size(3) &&
                   k.sizes().slice(0, 3) == v.sizes().slice(0, 3);
  return fit && q.size(2) <= most_queries && q.numel() > 0 && k.numel() > 0 && v.numel() > 0 &&
         has_dense_heads(k) && has_dense_heads(v);
}

}  // namespace

std::optional<at::Tensor> attention_of_few_queries(const at::Tensor& q, const at::Tensor& k,
                                                   const at::Tensor& v,
                                                   const std::optional<at::Tensor>& mask,
                                                   std::optional<double> scale) {
  if (!are_few_queries(q, k, v, mask)) return std::nullopt;
  return of_few_queries(q, k, v, mask, scale.value_or(1 / std::sqrt(double(q.size(3)))));
}

}  // namespace redco
