// The kernels of rotary positions for GPUs, compiled for the CPU, beside LibTorch's operators.
#include <redco/nn.h>

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cstdint>

#include "cuda_on_cpu.h"

namespace {

#include "../../engine/kernels/rotary.cu"

constexpr int64_t n_batch = 2, n_heads = 3, n_positions = 4, n_pairs = 16;

template <class Type>
auto* packs_of(const at::Tensor& tensor) {
  return static_cast<Pack<typename Type::Stored>*>(tensor.data_ptr());
}

// x [batch, heads, positions, size], cos and sin [batch or 1, 1, positions, pairs].
template <class Type, class Kernel>
void compare(Kernel kernel, const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
             bool are_neighbours, double tolerance) {
  const int64_t n = Pack<typename Type::Stored>::n;
  at::Tensor y = at::empty_like(x);
  const TurnedHeads heads{
      .x_batch = x.stride(0) / n,
      .x_head = x.stride(1) / n,
      .x_position = x.stride(2) / n,
      .y_batch = y.stride(0) / n,
      .y_head = y.stride(1) / n,
      .y_position = y.stride(2) / n,
      .angle_batch = cos.size(0) > 1 ? cos.stride(0) / n : 0,
      .angle_head = 0,
      .angle_position = cos.stride(2) / n,
      .n_heads = u32(x.size(1)),
      .n_positions = u32(x.size(2)),
      .n_angles = u32(n_pairs / n),
      .n_rest = u32((x.size(3) - 2 * n_pairs) / n),
      .sign = -1,
  };
  for (blockIdx.x = 0; blockIdx.x < n_batch * n_positions; ++blockIdx.x)
    kernel(packs_of<Type>(x), packs_of<Type>(cos), packs_of<Type>(sin), packs_of<Type>(y), heads);
  at::Tensor wide =
      redco::rotary(x.to(at::kDouble), cos.to(at::kDouble), -sin.to(at::kDouble), are_neighbours);
  CHECK(at::allclose(y.to(at::kDouble), wide, tolerance, tolerance));
}

}  // namespace

TEST_CASE("rotary on GPUs: whole heads and parts of them, by heads and by positions") {
  at::manual_seed(1);
  for (int64_t n_rest : {0, 16})
    for (int64_t batch_of_angles : {int64_t{1}, n_batch})
      for (bool by_positions : {false, true}) {
        CAPTURE(n_rest);
        CAPTURE(batch_of_angles);
        CAPTURE(by_positions);
        const int64_t size = 2 * n_pairs + n_rest;
        at::Tensor x = by_positions
                           ? at::randn({n_batch, n_positions, n_heads, size}).transpose(1, 2)
                           : at::randn({n_batch, n_heads, n_positions, size});
        at::Tensor angles = at::randn({batch_of_angles, 1, n_positions, n_pairs});
        auto run = [&](auto type, auto halves, auto neighbours, at::ScalarType dtype,
                       double tolerance) {
          using Type = decltype(type);
          at::Tensor from = x.to(dtype), cos = angles.cos().to(dtype), sin = angles.sin().to(dtype);
          compare<Type>(halves, from, cos, sin, false, tolerance);
          compare<Type>(neighbours, from, cos, sin, true, tolerance);
        };
        run(Float{}, rotary_halves_float, rotary_neighbours_float, at::kFloat, 1e-6);
        run(BFloat16{}, rotary_halves_bfloat16, rotary_neighbours_bfloat16, at::kBFloat16,
            1.0 / 128);
        run(Half{}, rotary_halves_half, rotary_neighbours_half, at::kHalf, 1.0 / 1024);
      }
}
