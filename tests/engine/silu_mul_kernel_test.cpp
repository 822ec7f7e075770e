// The kernels of silu_mul for GPUs, compiled for the CPU, beside LibTorch's operators.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "cuda_on_cpu.h"

namespace {

#include "../../engine/kernels/silu_mul.cu"

constexpr int64_t n_rows = 5, n_columns = 48;

template <class Type>
auto* packs_of(const at::Tensor& tensor) {
  return static_cast<Pack<typename Type::Stored>*>(tensor.data_ptr());
}

// `gate` and `up` [rows, columns] may lie in longer rows.
template <class Type, class Multiply, class Differentiate>
void compare(Multiply multiply_rows, Differentiate differentiate_rows, const at::Tensor& gate,
             const at::Tensor& up, double tolerance) {
  const int64_t n = Pack<typename Type::Stored>::n;
  const GatedRows rows{n_columns / n, gate.stride(0) / n, up.stride(0) / n};
  at::Tensor grad = at::randn({n_rows, n_columns}, gate.options());
  at::Tensor y = at::empty_like(grad), d_gate = at::empty_like(grad), d_up = at::empty_like(grad);
  for (blockIdx.x = 0; blockIdx.x < n_rows; ++blockIdx.x) {
    multiply_rows(packs_of<Type>(gate), packs_of<Type>(up), packs_of<Type>(y), rows);
    differentiate_rows(packs_of<Type>(grad), packs_of<Type>(gate), packs_of<Type>(up),
                       packs_of<Type>(d_gate), packs_of<Type>(d_up), rows);
  }
  at::Tensor wide_gate = gate.to(at::kDouble), wide_up = up.to(at::kDouble);
  at::Tensor silu = at::silu(wide_gate), wide_grad = grad.to(at::kDouble);
  auto check = [&](const at::Tensor& actual, const at::Tensor& expected) {
    CHECK(at::allclose(actual.to(at::kDouble), expected, tolerance, tolerance));
  };
  check(y, silu * wide_up);
  check(d_up, wide_grad * silu);
  check(d_gate, at::silu_backward(wide_grad * wide_up, wide_gate));
}

}  // namespace

TEST_CASE("silu_mul and its gradients, dense and as halves of one projection") {
  for (bool is_joined : {false, true}) {
    auto tensors = [&](at::ScalarType dtype) {
      at::Tensor all = at::randn({n_rows, 2 * n_columns}, at::kDouble).mul(3).to(dtype);
      std::vector<at::Tensor> halves = all.chunk(2, 1);
      if (!is_joined)
        for (at::Tensor& half : halves) half = half.contiguous();
      return halves;
    };
    CAPTURE(is_joined);
    std::vector<at::Tensor> in = tensors(at::kFloat);
    compare<Float>(silu_mul_float, silu_mul_backward_float, in[0], in[1], 1e-5);
    in = tensors(at::kBFloat16);
    compare<BFloat16>(silu_mul_bfloat16, silu_mul_backward_bfloat16, in[0], in[1], 1.0 / 256);
    in = tensors(at::kHalf);
    compare<Half>(silu_mul_half, silu_mul_backward_half, in[0], in[1], 1.0 / 1024);
  }
}

TEST_CASE("silu_mul of what is not finite, and far from zero") {
  const float infinity = std::numeric_limits<float>::infinity();
  at::Tensor gate = at::tensor({-infinity, infinity, -200.0F, 200.0F, NAN, 0.0F, -0.0F, 88.0F});
  at::Tensor up = at::ones({8}), y = at::empty({8});
  blockIdx.x = 0;
  silu_mul_float(packs_of<Float>(gate), packs_of<Float>(up), packs_of<Float>(y), {2, 2, 2});
  at::Tensor expected = at::silu(gate) * up;
  CHECK(at::allclose(y, expected, 1e-6, 1e-30, /*equal_nan=*/true));
}
