// Dropout in one pass, beside the product with numbers that a generator draws.
#include "../../engine/kernels/random/fill.h"

#include <redco/error.h>
#include <redco/nn.h>
#include <redco/random.h>
#include <redco/sharding.h>

#include "files.h"
#include "thread_mesh.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

using namespace redco;
using redco::testing::on_threads;

namespace {

constexpr uint64_t seed = 7;

// Returns the factor of each element.
at::Tensor factors(const at::Tensor& like, double p, at::Generator rng) {
  return at::empty_like(like).bernoulli_(1 - p, rng).mul_(p < 1 ? 1 / (1 - p) : 0.0);
}

// The first gradient, and that of its sum of squares by the gradient of y.
std::vector<at::Tensor> derivatives(const at::Tensor& x, const at::Tensor& y,
                                    const at::Tensor& grad) {
  auto first = torch::autograd::grad({y}, {x}, {grad}, true, true);
  auto second = torch::autograd::grad({first[0].square().sum()}, {grad});
  return {first[0].detach(), second[0]};
}

}  // namespace

TEST_CASE("dropout: values and derivatives are those of the product, to the last bit") {
  at::manual_seed(1);
  for (at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf})
    for (double p : {0.0, 0.1, 0.37, 0.5, 1.0}) {
      CAPTURE(type);
      CAPTURE(p);
      at::Tensor x = at::randn({7, 33, 50}).to(type);
      x[0][0][0] = std::numeric_limits<double>::infinity();  // times 0 it is NaN
      for (at::Tensor form : {x, x.transpose(0, 2), x.slice(2, 1, 50, 2), x.select(0, 1)}) {
        at::Tensor leaf = form.detach().requires_grad_();
        at::Tensor grad = at::randn(form.sizes()).to(type).requires_grad_();
        at::Generator one = make_rng(seed), other = make_rng(seed);
        at::Tensor y = dropout(leaf, p, one), expected = leaf * factors(leaf, p, other);
        CHECK(y.strides() == expected.strides());
        CHECK(at::allclose(y, expected, 0, 0, /*equal_nan=*/true));
        CHECK(counter_generator(one)->count() == 1);
        auto actual = derivatives(leaf, y, grad), wanted = derivatives(leaf, expected, grad);
        for (size_t i = 0; i < 2; ++i) CHECK(at::equal(actual[i], wanted[i]));
        CHECK(counter_generator(one)->count() == 1);
        CHECK(at::allclose(dropout(leaf, p, one), leaf * factors(leaf, p, other), 0, 0, true));
      }
    }
}

TEST_CASE("dropout: an expanded gradient, a micro-batch and a generator of LibTorch") {
  at::Tensor x = at::randn({4, 6}).requires_grad_();
  dropout(x, 0.5, make_rng(seed)).sum().backward();
  CHECK(at::equal(x.grad(), factors(x, 0.5, make_rng(seed))));

  at::Tensor whole = at::randn({12, 6});
  at::Tensor all = dropout(whole, 0.5, make_rng(seed));
  for (int64_t first : {0, 4, 8}) {
    at::Generator rng = make_rng(seed);
    counter_generator(rng)->set_batch({first, 4});
    at::Tensor part = whole.narrow(0, first, 4).detach().requires_grad_();
    at::Tensor y = dropout(part, 0.5, rng);
    CHECK(at::equal(y, all.narrow(0, first, 4)));
    counter_generator(rng)->set_batch({0, 4});  // by then it is another's turn
    y.backward(part.detach());
    CHECK(at::equal(part.grad(), y));
  }

  at::Generator one = at::detail::createCPUGenerator(3), other = at::detail::createCPUGenerator(3);
  CHECK(at::equal(dropout(x, 0.5, one), x * factors(x, 0.5, other)));
}

TEST_CASE("dropout: meta tensors draw, and bad arguments do not") {
  at::Generator rng = make_rng(seed);
  at::Tensor meta = at::empty({3, 4}, at::device(at::kMeta));
  CHECK(dropout(meta, 0.5, rng).sizes() == meta.sizes());
  CHECK(counter_generator(rng)->count() == 1);
  at::Tensor x = at::ones({3});
  for (double p : {-0.1, 1.5, std::numeric_limits<double>::quiet_NaN()})
    check_contains(message_of([&] { dropout(x, p, rng); }), "a probability from 0 to 1");
  check_contains(message_of([&] { dropout(x.to(at::kLong), 0.5, rng); }), "floating-point");
  CHECK(counter_generator(rng)->count() == 1);
}

TEST_CASE("dropout does not depend on the layout") {
  at::manual_seed(2);
  at::Tensor whole = at::randn({5, 6}, at::kDouble), grad = at::randn({5, 6}, at::kDouble);
  auto run = [&](const at::Tensor& x, const at::Tensor& of_y) {
    at::Tensor leaf = x.detach().requires_grad_();
    at::Generator rng = make_rng(seed);
    dropout(leaf, 0.3, rng);
    at::Tensor y = dropout(leaf, 0.3, rng);
    y.backward(of_y);
    return std::vector<at::Tensor>{y.detach(), leaf.grad()};
  };
  const std::vector<at::Tensor> expected = run(whole, grad);
  for (const Mesh::Shape& shape :
       {Mesh::Shape{1, 1, 1, 1, 2, 1}, {1, 1, 1, 1, 4, 1}, {2, 1, 1, 1, 2, 1}, {1, 2, 1, 1, 2, 1}})
    on_threads(shape, [&](const std::shared_ptr<const Mesh>& mesh) {
      Placement r, s0 = Placement::shard(0), s1 = Placement::shard(1);
      for (const Placement& a : {r, s0, s1})
        for (const Placement& b : {r, s0, s1, Placement::shard(1, 3), Placement::on_rank(1)}) {
          if (a == s1 && b.block > 0) continue;
          Placements placements = {a, r, r, r, b};
          at::Tensor x = shard(whole, mesh, placements);
          for (const at::Tensor& of_y : {shard(grad, mesh, placements), shard(grad, mesh, {})}) {
            const std::vector<at::Tensor> actual = run(x, of_y);
            for (size_t i = 0; i < 2; ++i)
              if (!at::allclose(full(actual[i]), expected[i], 1e-12, 1e-12))
                throw std::runtime_error(to_string(placements) + ": other numbers");
          }
        }
    });
}

TEST_CASE("dropout of a sum to come is one") {
  at::manual_seed(3);
  at::Tensor a = at::randn({5, 4}, at::kDouble), b = at::randn({4, 6}, at::kDouble);
  at::Tensor expected = dropout(a.mm(b), 0.3, make_rng(seed));
  at::Tensor of_a = factors(expected, 0.3, make_rng(seed)).mm(b.t());
  on_threads(1, 2, [&](const std::shared_ptr<const Mesh>& mesh) {
    Placements columns, rows;
    columns[Mesh::mp] = Placement::shard(1);
    rows[Mesh::mp] = Placement::shard(0);
    at::Tensor leaf = shard(a, mesh, columns).requires_grad_();
    at::Tensor y = dropout(leaf.mm(shard(b, mesh, rows)), 0.3, make_rng(seed));
    if (!placements_of(y)[Mesh::mp].is_partial()) throw std::runtime_error("it was summed");
    if (!at::allclose(full(y), expected, 1e-12, 1e-12)) throw std::runtime_error("other numbers");
    y.sum().backward();
    if (!at::allclose(full(leaf.grad()), of_a, 1e-12, 1e-12))
      throw std::runtime_error("another gradient");
  });
}
