// Launches the kernels of rotary.cu.

#include "rotary_kernel.h"

#include "cuda_kernels.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

namespace redco::kernels {

extern const char* const rotary_source;  // rotary.cu

namespace {

constexpr int64_t most_heads_dims = 4;  // with that of elements

// `TurnedHeads` of rotary.cu.
struct TurnedHeads {
  int64_t x_batch, x_head, x_position;
  int64_t y_batch, y_head, y_position;
  int64_t angle_batch, angle_head, angle_position;
  uint32_t n_heads, n_positions;
  uint32_t n_angles, n_rest;
  float sign;
};

// The tensor with four dimensions.
at::Tensor as_heads(at::Tensor tensor) {
  while (tensor.dim() < most_heads_dims) tensor = tensor.unsqueeze(0);
  return tensor;
}

// Whether all rows begin at a pack.
bool begins_at_packs(const at::Tensor& heads) {
  const int64_t size = heads.element_size();
  for (int64_t dim = 0; dim + 1 < heads.dim(); ++dim)
    if (heads.size(dim) > 1 && heads.stride(dim) * size % pack_bytes != 0) return false;
  return begins_at_pack(heads);
}

}  // namespace

bool rotary_on_gpu(const at::Tensor& y, const at::Tensor& x, const at::Tensor& cos,
                   const at::Tensor& sin, bool are_neighbours, float sign) {
  if (!has_kernels_for(x) || x.dim() > most_heads_dims) return false;
  const at::Tensor from = as_heads(x), to = as_heads(y), c = as_heads(cos), s = as_heads(sin);
  const int64_t per_pack = pack_bytes / x.element_size();
  const int64_t n_angles = cos.size(-1), n_rest = x.size(-1) - 2 * n_angles;
  if (n_angles % per_pack != 0 || n_rest % per_pack != 0 || !begins_at_packs(from) ||
      !begins_at_packs(to) || !begins_at_packs(c) || !begins_at_packs(s))
    return false;
  const int64_t n_blocks = from.size(0) * from.size(2);
  const int64_t n_items = from.size(1) * (n_angles + n_rest) / per_pack;
  if (std::max(n_blocks, n_items) > std::numeric_limits<int32_t>::max()) return false;

  auto stride = [&](const at::Tensor& heads, int64_t dim) {
    return heads.size(dim) > 1 ? heads.stride(dim) / per_pack : 0;
  };
  TurnedHeads heads{stride(from, 0),
                    stride(from, 1),
                    stride(from, 2),
                    stride(to, 0),
                    stride(to, 1),
                    stride(to, 2),
                    stride(c, 0),
                    stride(c, 1),
                    stride(c, 2),
                    uint32_t(from.size(1)),
                    uint32_t(from.size(2)),
                    uint32_t(n_angles / per_pack),
                    uint32_t(n_rest / per_pack),
                    sign};
  const void *of_x = x.const_data_ptr(), *of_cos = c.const_data_ptr(), *of_sin = s.const_data_ptr();
  void* of_y = y.mutable_data_ptr();
  void* arguments[] = {&of_x, &of_cos, &of_sin, &of_y, &heads};
  static CudaKernels kernels(rotary_source);
  const std::string name = are_neighbours ? "rotary_neighbours_" : "rotary_halves_";
  kernels.launch((name + kernel_suffix(x.scalar_type())).c_str(), x.device(),
                 {.x = n_blocks, .n_threads = threads_for(n_items)}, arguments);
  return true;
}

}  // namespace redco::kernels
