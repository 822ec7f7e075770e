// Products in float8 against sums of the rounded numbers in float64.
#include <redco/float8.h>
#include <redco/nn.h>

#include <ATen/ATen.h>

#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

namespace redco {

namespace {

// Returns x as a product sees it.
at::Tensor rounded(const at::Tensor& x, c10::ScalarType dtype) {
  const double most = dtype == at::kFloat8_e4m3fn ? 448 : 57344;
  const double scale = std::exp2(std::ceil(std::log2(x.abs().amax().item<double>() / most)));
  return (x / scale).to(dtype).to(at::kDouble) * scale;
}

at::Tensor random(at::IntArrayRef sizes) { return at::randn(sizes).to(at::kBFloat16); }

at::Tensor product(const at::Tensor& x, const at::Tensor& weight) {
  return redco::linear(x, weight, at::Tensor());
}

bool are_close(const at::Tensor& y, const at::Tensor& exact) {
  return at::allclose(y.to(at::kDouble), exact, 1.01 / 256,
                      1e-4 * exact.abs().amax().item<double>());
}

}  // namespace

TEST_CASE("float8: results and gradients are those of the rounded numbers") {
  at::manual_seed(0);
  const at::Tensor x = random({2, 24, 144}).requires_grad_(),
                   weight = random({128, 144}).requires_grad_(),
                   bias = random({128}).requires_grad_(), grad = random({2, 24, 128}) * 1e-3;
  const Float8Products on(true);
  const at::Tensor y = redco::linear(x, weight, bias);
  y.backward(grad);
  const at::Tensor from = rounded(x.detach(), at::kFloat8_e4m3fn).view({48, 144}),
                   w = rounded(weight.detach(), at::kFloat8_e4m3fn),
                   g = rounded(grad, at::kFloat8_e5m2).view({48, 128});
  // The bias is added to a result in bfloat16.
  const at::Tensor result = from.mm(w.t()).view({2, 24, 128}).to(at::kBFloat16);
  CHECK(are_close(y, (result + bias).to(at::kDouble)));
  CHECK(are_close(x.grad().view({48, 144}), g.mm(w)));
  CHECK(are_close(weight.grad(), g.t().mm(from)));
  CHECK(are_close(bias.grad(), grad.to(at::kDouble).sum(at::IntArrayRef{0, 1})));
  const at::Tensor exact = at::linear(x.to(at::kDouble), weight.to(at::kDouble));
  const double error = ((result.to(at::kDouble) - exact).norm() / exact.norm()).item<double>();
  CHECK(error > 0.01);
  CHECK(error < 0.05);
}

TEST_CASE("float8: zeros, large and small numbers") {
  const Float8Products on(true);
  at::manual_seed(0);
  const at::Tensor weight = random({128, 128});
  CHECK(at::equal(product(at::zeros({16, 128}, at::kBFloat16), weight),
                  at::zeros({16, 128}, at::kBFloat16)));
  for (double factor : {1e-20, 1e20}) {
    const at::Tensor x = random({16, 128}) * factor;
    CHECK(are_close(product(x, weight), rounded(x.to(at::kDouble), at::kFloat8_e4m3fn)
                                            .mm(rounded(weight, at::kFloat8_e4m3fn).t())));
  }
  at::Tensor x = random({16, 128});
  x[3][5] = NAN;
  CHECK(product(x, weight).isnan().any().item().toBool());
}

TEST_CASE("float8: layers share the rounded x until it is written to") {
  const Float8Products on(true);
  at::manual_seed(0);
  at::Tensor x = random({16, 128});
  const at::Tensor weight = random({128, 128}).requires_grad_();
  const at::Tensor first = product(x, weight), second = product(x, weight);
  CHECK(at::equal(first, second));
  x.mul_(2);
  CHECK(at::equal(product(x, weight), 2 * first));
}

TEST_CASE("float8: what stays in 16 bits") {
  at::manual_seed(0);
  const auto is_float8 = [](at::IntArrayRef x_sizes, int64_t n_out, c10::ScalarType dtype) {
    const at::Tensor x = at::randn(x_sizes).to(dtype),
                     w = at::randn({n_out, x_sizes.back()}).to(dtype);
    const at::Tensor plain = at::linear(x, w);
    const Float8Products on(true);
    return (product(x, w) - plain).norm().item<double>() > 1e-2 * plain.norm().item<double>();
  };
  CHECK(is_float8({32, 128}, 256, at::kBFloat16));
  CHECK(!is_float8({32, 128}, 256, at::kFloat));
  CHECK(!is_float8({24, 128}, 256, at::kBFloat16));
  CHECK(!is_float8({32, 136}, 256, at::kBFloat16));
  CHECK(!is_float8({32, 128}, 112, at::kBFloat16));
}

TEST_CASE("float8: no second derivative") {
  const Float8Products on(true);
  const at::Tensor x = random({16, 128}).requires_grad_(), weight = random({128, 128});
  const at::Tensor y = product(x, weight).pow(2).sum();
  CHECK_THROWS_WITH(torch::autograd::grad({y}, {x}, {}, true, /*create_graph=*/true),
                    doctest::Contains("no second derivative"));
}

}  // namespace redco
