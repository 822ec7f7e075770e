#include "../../engine/train/measures/flop_counter.h"
#include "../../engine/train/measures/peak_flops.h"

#include <redco/detail/recomputing.h>
#include <redco/nn.h>

#include <ATen/ops/addmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/conv1d.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/conv_transpose2d.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/tensor.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <stdexcept>
#include <vector>

namespace redco {

using train::FlopCounter;

namespace {

at::Tensor leaf(at::IntArrayRef sizes) { return at::randn(sizes).requires_grad_(); }

struct Counted {
  double forward = 0;
  double backward = 0;
};

Counted count(const std::function<at::Tensor()>& function) {
  Counted counted;
  at::Tensor result;
  {
    FlopCounter counter(counted.forward);
    result = function().sum();
  }
  {
    FlopCounter counter(counted.backward);
    torch::autograd::backward({result}, {});
  }
  return counted;
}

void check(const Counted& counted, double forward, double backward) {
  CHECK(counted.forward == forward);
  CHECK(counted.backward == backward);
}

TEST_CASE("products: two operations for each multiplication, twice as many in backward") {
  at::Tensor a = leaf({3, 5}), b = leaf({5, 7}), bias = leaf({7});
  double once = 2 * 3 * 5 * 7;
  check(count([&] { return at::matmul(a, b); }), once, 2 * once);
  check(count([&] { return at::addmm(bias, a, b); }), once, 2 * once);
  check(count([&] { return at::linear(a, b.t(), bias); }), once, 2 * once);
  at::Tensor batch = leaf({4, 3, 5}), other = leaf({4, 5, 7});
  check(count([&] { return at::bmm(batch, other); }), 4 * once, 8 * once);
  check(count([&] { return at::einsum("bij,bjk->bik", {batch, other}); }), 4 * once, 8 * once);
  check(count([&] { return at::matmul(batch, b); }), 4 * once, 8 * once);
}

TEST_CASE("of a frozen matrix there is no gradient to compute") {
  at::Tensor a = leaf({3, 5}), frozen = at::randn({5, 7});
  double once = 2 * 3 * 5 * 7;
  check(count([&] { return at::matmul(a, frozen); }), once, once);
}

TEST_CASE("convolutions") {
  at::Tensor image = leaf({2, 6, 9, 11}), weight = leaf({4, 6, 3, 5});
  double once = 2.0 * 2 * (4 * 6 * 3 * 5) * (9 * 11);
  check(count([&] {
          return at::conv2d(image, weight, {}, at::IntArrayRef{1, 1}, at::IntArrayRef{1, 2});
        }),
        once, 2 * once);
  double strided = 2.0 * 2 * (4 * 6 * 3 * 5) * (3 * 2);  // (9 - 5) / 2 + 1, (11 - 9) / 2 + 1
  check(count([&] {
          return at::conv2d(image, weight, {}, at::IntArrayRef{2, 2}, at::IntArrayRef{0, 0},
                            at::IntArrayRef{2, 2});
        }),
        strided, 2 * strided);
  at::Tensor grouped = leaf({4, 3, 3, 5});
  double in_groups = 2.0 * 2 * (4 * 3 * 3 * 5) * (7 * 7);
  check(count([&] {
          return at::conv2d(image, grouped, {}, at::IntArrayRef{1, 1}, at::IntArrayRef{0, 0},
                            at::IntArrayRef{1, 1}, 2);
        }),
        in_groups, 2 * in_groups);
  at::Tensor transposed = leaf({6, 4, 3, 5});
  double spread = 2.0 * 2 * (6 * 4 * 3 * 5) * (9 * 11);
  check(count([&] { return at::conv_transpose2d(image, transposed); }), spread, 2 * spread);
  at::Tensor sound = leaf({2, 3, 10}), filter = leaf({4, 3, 4});
  double line = 2.0 * 2 * (4 * 3 * 4) * 7;
  check(count([&] { return at::conv1d(sound, filter); }), line, 2 * line);
}

TEST_CASE("attention: two products, whatever is masked") {
  at::Tensor query = leaf({2, 3, 8, 16}), key = leaf({2, 3, 12, 16}), value = leaf({2, 3, 12, 16});
  double once = 2.0 * 2 * 3 * 8 * 12 * (16 + 16);
  check(count([&] { return at::scaled_dot_product_attention(query, key, value); }), once, 2 * once);
  // What LibTorch composes it of where it has no kernel.
  check(count([&] { return at::scaled_dot_product_attention(query, key, value, {}, 0.1); }), once,
        2 * once);
}

TEST_CASE("attention within segments: of a row as one sequence, and of a window") {
  at::Tensor query = leaf({2, 4, 8, 16}), key = leaf({2, 2, 8, 16}), value = leaf({2, 2, 8, 16});
  at::Tensor ids = at::tensor({1, 1, 1, 1, 2, 2, 2, 2}, at::kLong).expand({2, 8});
  double once = 2.0 * 2 * 4 * 8 * 8 * (16 + 16);
  check(count([&] { return redco::segment_attention(query, key, value, ids, {}); }), once,
        2 * once);
  check(count([&] { return redco::segment_attention(query, key, value, ids, 2); }), once / 4,
        once / 2);
}

TEST_CASE("products with experts: one for each row and choice, whatever the kernel calls") {
  at::Tensor rows = leaf({6, 5});
  at::Tensor choices = at::tensor({0, 1, 1, 2, 0, 2, 0, 0, 1, 0, 2, 1}, at::kLong).view({6, 2});
  std::vector<at::Tensor> experts{leaf({7, 5}), leaf({7, 5}), leaf({7, 5})};
  double once = 2.0 * 6 * 2 * 5 * 7;
  check(count([&] { return redco::grouped_linear(rows, choices, experts); }), once, 2 * once);
}

TEST_CASE("what backward computes again does not count") {
  at::Tensor a = leaf({3, 5}), b = leaf({5, 7});
  double once = 2 * 3 * 5 * 7;
  check(count([&] {
          at::Tensor product = at::matmul(a, b);
          product.register_hook([&](const at::Tensor&) {
            Recomputing recomputing;
            at::matmul(a, b);
          });
          return product;
        }),
        once, 2 * once);
}

TEST_CASE("a scope left by an exception counts nothing; counters nest") {
  at::Tensor a = at::randn({3, 5}), b = at::randn({5, 7});
  double outer = 0, inner = 0, failed = 0;
  try {
    FlopCounter counter(failed);
    at::matmul(a, b);
    throw std::runtime_error("it ends here");
  } catch (const std::runtime_error&) {
  }
  {
    FlopCounter first(outer);
    at::matmul(a, b);
    FlopCounter second(inner);
    at::matmul(a, b);
  }
  at::matmul(a, b);
  CHECK(failed == 0);
  CHECK(outer == 2 * 2 * 3 * 5 * 7);
  CHECK(inner == 2 * 3 * 5 * 7);
}

TEST_CASE("the peak of the CPU is measured again if a model exceeds it") {
  auto peak = [](double reached = 0) {
    return *train::peak_flops(c10::kCPU, at::kDouble, reached);
  };
  double first = peak();
  CHECK(first > 0);
  CHECK(peak(first / 2) == first);
  double before = first;
  for (int i = 0; i < 3; ++i) {
    double again = peak(1e30);
    CHECK(again >= before);
    before = again;
  }
  // Not more than four times.
  CHECK(peak(1e30) == before);
  CHECK(peak() == before);
}

}  // namespace
}  // namespace redco
