// silu_mul against the two operators that it replaces.
#include <redco/nn.h>

#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/silu.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <vector>

using redco::silu_mul;

namespace {

using Tensors = std::vector<at::Tensor>;
using Gated = at::Tensor (*)(const at::Tensor&, const at::Tensor&);

at::Tensor two_operators(const at::Tensor& gate, const at::Tensor& up) {
  return at::silu(gate) * up;
}

// The result, and the gradients of both tensors for the gradient `grad` of it.
Tensors computed(Gated gated, Tensors leaves, const std::function<Tensors(const Tensors&)>& halves,
                 const at::Tensor& grad) {
  for (at::Tensor& leaf : leaves) leaf = leaf.clone().requires_grad_();
  Tensors given = halves(leaves);
  at::Tensor y = gated(given[0], given[1]);
  Tensors all{y.detach()};
  for (const at::Tensor& gradient : torch::autograd::grad({y}, leaves, {grad}))
    all.push_back(gradient);
  return all;
}

void compare(const Tensors& leaves, const std::function<Tensors(const Tensors&)>& halves) {
  at::Tensor grad = at::randn_like(two_operators(halves(leaves)[0], halves(leaves)[1]));
  Tensors expected = computed(two_operators, leaves, halves, grad);
  Tensors actual = computed(silu_mul, leaves, halves, grad);
  // LibTorch's kernels compute exp in another way at the end of a thread's elements. In 16 bits
  // such a difference may round to the next number, in each of two operators.
  const at::ScalarType dtype = expected[0].scalar_type();
  const double epsilon = dtype == at::kDouble     ? 0x1p-52
                         : dtype == at::kFloat    ? 0x1p-23
                         : dtype == at::kBFloat16 ? 0x1p-8
                                                  : 0x1p-11;
  for (size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(dtype);
    CAPTURE(i);
    CAPTURE((actual[i] - expected[i]).abs().max().item<double>());
    CHECK(at::allclose(actual[i], expected[i], 8 * epsilon, epsilon));
  }
}

}  // namespace

TEST_CASE("the numbers of silu and mul, of their gradients too") {
  auto both = [](const Tensors& leaves) { return leaves; };
  for (at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const std::vector<int64_t>& sizes :
         {std::vector<int64_t>{}, {0}, {1}, {7, 5}, {3, 129, 301}, {1, 100'001}}) {
      CAPTURE(sizes.size());
      auto options = at::TensorOptions(dtype);
      compare({at::randn(sizes, options) * 4, at::randn(sizes, options)}, both);
    }
  }
}

TEST_CASE("halves of one projection, transposed and expanded tensors") {
  at::Tensor joined = at::randn({4, 33, 2 * 67});
  compare({joined}, [](const Tensors& leaves) { return leaves[0].chunk(2, -1); });
  at::Tensor square = at::randn({150, 150});
  compare({square, square}, [](const Tensors& leaves) {
    return Tensors{leaves[0].t(), leaves[1]};
  });
  compare({at::randn({1, 60}), at::randn({50, 60})}, [](const Tensors& leaves) {
    return Tensors{leaves[0].expand({50, 60}), leaves[1]};
  });
  compare({at::randn({50, 1}), at::randn({50, 60})},  // broadcast: by the two operators
          [](const Tensors& leaves) { return leaves; });
}

TEST_CASE("a second derivative") {
  auto second = [](Gated gated) {
    at::Tensor gate = at::arange(-3, 4, at::kDouble).requires_grad_();
    at::Tensor up = (gate.detach() * 0.3 + 1).requires_grad_();
    at::Tensor y = gated(gate, up).square().sum();
    Tensors first = torch::autograd::grad({y}, {gate, up}, {}, true, /*create_graph=*/true);
    return torch::autograd::grad({(first[0] * first[1]).sum()}, {gate, up});
  };
  Tensors expected = second(two_operators), actual = second(silu_mul);
  for (size_t i = 0; i < 2; ++i) CHECK(at::allclose(actual[i], expected[i], 1e-12, 1e-12));
}
