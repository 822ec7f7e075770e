// RMS norms on CPUs beside LibTorch's composition of single operators.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_rms_norm_compositeimplicitautograd_dispatch.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor composed(const at::Tensor& x, at::IntArrayRef shape,
                    const std::optional<at::Tensor>& weight, std::optional<double> eps) {
  return std::get<0>(at::compositeimplicitautograd::_fused_rms_norm(x, shape, weight, eps));
}

at::Tensor normalized(const at::Tensor& x, at::IntArrayRef shape,
                      const std::optional<at::Tensor>& weight, std::optional<double> eps) {
  return std::get<0>(at::_fused_rms_norm(x, shape, weight, eps));
}

// The result, and the first gradients of x and the weight.
template <class Norm>
Tensors computed(Norm norm, const at::Tensor& x, at::IntArrayRef shape, const at::Tensor& weight,
                 const at::Tensor& grad) {
  at::Tensor leaf = x.detach().requires_grad_();
  Tensors leaves{leaf};
  std::optional<at::Tensor> factors;
  if (weight.defined()) leaves.push_back(*(factors = weight.detach().requires_grad_()));
  at::Tensor y = norm(leaf, shape, factors, 1e-5);
  Tensors all{y.detach()};
  for (const at::Tensor& gradient : torch::autograd::grad({y}, leaves, {grad}))
    all.push_back(gradient);
  return all;
}

void compare(const at::Tensor& x, at::IntArrayRef shape, const at::Tensor& weight) {
  at::Tensor grad = at::randn_like(x);
  at::Tensor wide = weight.defined() ? weight.to(at::kDouble) : weight;
  Tensors actual = computed(normalized, x, shape, weight, grad);
  Tensors exact = computed(composed, x.to(at::kDouble), shape, wide, grad.to(at::kDouble));
  for (size_t i = 0; i < exact.size(); ++i) {
    const at::ScalarType type = actual[i].scalar_type();
    CAPTURE(i);
    CAPTURE(type);
    CHECK((type == (i < 2 ? x : weight).scalar_type()));
    CHECK(actual[i].sizes() == exact[i].sizes());
    const double once = type == at::kBFloat16 ? 0x1p-8 : type == at::kHalf ? 0x1p-11 : 0x1p-24;
    const double inside = type == at::kDouble ? 0x1p-45 : 0x1p-17;
    CHECK(
        at::allclose(actual[i].to(at::kDouble), exact[i], type == at::kDouble ? 0 : once, inside));
  }
}

}  // namespace

TEST_CASE("rms norm: values and gradients of every type and shape") {
  at::manual_seed(1);
  for (at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf})
    for (const std::vector<int64_t>& sizes :
         {std::vector<int64_t>{1}, {16}, {3, 15}, {2, 70, 33}, {1, 1, 100}, {130, 2, 48}}) {
      at::Tensor x = (at::randn(sizes, at::kDouble) * 3).to(type);
      at::Tensor weight = at::randn({sizes.back()}, at::kDouble).to(type);
      compare(x, {sizes.back()}, weight);
      compare(x, {sizes.back()}, {});
      if (sizes.size() < 2) continue;
      compare(x.transpose(0, 1), {x.transpose(0, 1).size(-1)}, {});
      compare(x, x.sizes().slice(sizes.size() - 2),
              at::randn(x.sizes().slice(sizes.size() - 2), at::kDouble).to(type));
    }
}

TEST_CASE("rms norm: weights of another type, and no epsilon") {
  at::manual_seed(2);
  at::Tensor x = at::randn({5, 40}, at::kDouble), small = x * 1e-4,
             weight = at::randn({40}, at::kDouble);
  for (at::ScalarType of_x : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble})
    for (at::ScalarType of_weight : {at::kFloat, at::kBFloat16, at::kDouble})
      compare(x.to(of_x), {40}, weight.to(of_weight));
  for (at::ScalarType type : {at::kFloat, at::kDouble})
    CHECK(at::allclose(normalized(small.to(type), {40}, {}, {}),
                       composed(small.to(type), {40}, {}, {}), 1e-6, 1e-6));
}

TEST_CASE("rms norm: empty tensors, second derivatives, one gradient only, any number of threads") {
  at::manual_seed(3);
  CHECK(normalized(at::ones({0, 4}), {4}, at::ones({4}), 1e-5).sizes() == at::IntArrayRef({0, 4}));
  at::Tensor none = at::ones({0, 4}).requires_grad_(), one = at::ones({4}).requires_grad_();
  normalized(none, {4}, one, 1e-5).sum().backward();
  CHECK(at::equal(one.grad(), at::zeros({4})));

  auto second = [](auto norm) {
    at::Tensor x = at::linspace(-2, 3, 24, at::kDouble).view({4, 6}).requires_grad_();
    at::Tensor weight = at::linspace(1, 2, 6, at::kDouble).requires_grad_();
    at::Tensor y = norm(x, {6}, weight, 1e-5).pow(3).sum();
    Tensors first = torch::autograd::grad({y}, {x, weight}, {}, true, /*create_graph=*/true);
    return torch::autograd::grad({first[0].square().sum() + first[1].square().sum()}, {x, weight});
  };
  Tensors actual = second(normalized), expected = second(composed);
  for (size_t i = 0; i < 2; ++i) CHECK(at::allclose(actual[i], expected[i], 1e-10, 1e-12));

  at::Tensor x = at::randn({1000, 24}), weight = at::randn({24}).requires_grad_();
  at::set_num_threads(3);
  normalized(x, {24}, weight, 1e-5).square().sum().backward();
  at::Tensor of_many = weight.grad().clone();
  at::set_num_threads(1);
  weight.mutable_grad().reset();
  normalized(x, {24}, weight, 1e-5).square().sum().backward();
  CHECK(at::equal(weight.grad(), of_many));
}

TEST_CASE("rms norm keeps its input and one number for each row") {
  at::Tensor x = at::randn({8, 512}, at::kBFloat16).requires_grad_();
  at::Tensor y = at::rms_norm(x, {512}, at::ones({512}, at::kBFloat16), 1e-5);
  CHECK(y.grad_fn()->name() == "FusedRmsNormBackward0");
}
