// Rotary positions as one operator, beside LibTorch's operators.
#include <redco/error.h>
#include <redco/nn.h>

#include "files.h"
#include "sharding_cases.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdint>
#include <vector>

using redco::rotary;
using redco::testing::Case;
using redco::testing::run_all;
using redco::testing::Tensors;

namespace {

constexpr int64_t n_batch = 2, n_heads = 3, n_positions = 5;

// In float64, in the order of the elements.
at::Tensor expected(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                    bool are_neighbours) {
  at::Tensor y = x.to(at::kDouble);
  at::Tensor c = cos.to(at::kDouble), s = sin.to(at::kDouble);
  const int64_t n = cos.size(-1);
  std::vector<at::Tensor> parts = y.unbind(-1);
  for (int64_t i = 0; i < n; ++i) {
    const size_t first = size_t(are_neighbours ? 2 * i : i);
    const size_t second = size_t(are_neighbours ? 2 * i + 1 : n + i);
    const at::Tensor a = parts[first], b = parts[second];
    parts[first] = a * c.select(-1, i) - b * s.select(-1, i);
    parts[second] = b * c.select(-1, i) + a * s.select(-1, i);
  }
  return at::stack(parts, -1);
}

// Numbers are computed in float at least, and rounded once.
bool is_near(const at::Tensor& actual, const at::Tensor& wanted) {
  const at::ScalarType type = actual.scalar_type();
  const double once = type == at::kBFloat16 ? 0x1p-8 : type == at::kHalf ? 0x1p-11 : 0x1p-24;
  const double inside = type == at::kDouble ? 0x1p-49 : 0x1p-20;
  return at::allclose(actual.to(at::kDouble), wanted.to(at::kDouble),
                      type == at::kDouble ? 0 : once, inside);
}

struct Angles {
  at::Tensor cos, sin;
};

Angles angles(std::vector<int64_t> sizes, at::ScalarType type) {
  at::Tensor all = at::randn(sizes, at::kDouble) * 3;
  return {all.cos().to(type), all.sin().to(type)};
}

}  // namespace

TEST_CASE("rotary: values, memory order and gradients of every type and layout") {
  at::manual_seed(1);
  for (at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf})
    for (bool are_neighbours : {false, true})
      for (int64_t n_pairs : {1, 4, 19, 32})
        for (int64_t n_rest : {0, 1, 26})
          for (int64_t batch_of_angles : {int64_t{1}, n_batch}) {
            CAPTURE(type);
            CAPTURE(are_neighbours);
            CAPTURE(n_pairs);
            CAPTURE(n_rest);
            CAPTURE(batch_of_angles);
            const int64_t size = 2 * n_pairs + n_rest;
            auto [cos, sin] = angles({batch_of_angles, 1, n_positions, n_pairs}, type);
            at::Tensor dense =
                at::randn({n_batch, n_heads, n_positions, size}, at::kDouble).to(type);
            at::Tensor of_tokens = dense.transpose(1, 2).contiguous().transpose(1, 2);
            at::Tensor part = at::cat({dense, dense}, -1).narrow(-1, 0, size);
            at::Tensor turned_round = dense.transpose(2, 3).contiguous().transpose(2, 3);
            at::Tensor expanded = dense.narrow(1, 0, 1).expand_as(dense);
            for (const at::Tensor& form : {dense, of_tokens, part, turned_round, expanded}) {
              at::Tensor leaf = form.detach().requires_grad_();
              at::Tensor y = rotary(leaf, cos, sin, are_neighbours);
              CHECK((y.scalar_type() == type));
              CHECK(y.strides() == at::empty_like(form).strides());
              CHECK(is_near(y, expected(form, cos, sin, are_neighbours)));
              at::Tensor grad = at::randn_like(dense);
              auto gradients = torch::autograd::grad({y}, {leaf}, {grad});
              CHECK(is_near(gradients[0], expected(grad, cos, -sin, are_neighbours)));
            }
          }
}

TEST_CASE("rotary: any number of dimensions, of derivatives and of threads") {
  at::manual_seed(2);
  auto [cos, sin] = angles({7, 3}, at::kDouble);
  for (const std::vector<int64_t>& sizes :
       {std::vector<int64_t>{7, 6}, {4, 7, 6}, {2, 3, 4, 7, 8}, {0, 7, 6}}) {
    at::Tensor x = at::randn(sizes, at::kDouble);
    CHECK(is_near(rotary(x, cos, sin), expected(x, cos, sin, false)));
  }
  CHECK(is_near(rotary(at::ones({6}, at::kDouble), cos[1], sin[1]),
                expected(at::ones({6}, at::kDouble), cos[1], sin[1], false)));

  at::Tensor x = at::randn({7, 6}, at::kDouble).requires_grad_();
  at::Tensor weight = at::randn({7, 6}, at::kDouble).requires_grad_();
  auto first = torch::autograd::grad({rotary(x, cos, sin)}, {x}, {weight}, true, true);
  auto second = torch::autograd::grad({first[0].pow(3).sum()}, {weight}, {}, true, true);
  CHECK(is_near(second[0],
                expected(3 * expected(weight, cos, -sin, false).square(), cos, sin, false)));
  CHECK(second[0].requires_grad());

  at::Tensor many = at::randn({64, 8, 130, 64});
  auto [c, s] = angles({1, 1, 130, 32}, at::kFloat);
  CHECK(is_near(rotary(many, c, s), expected(many, c, s, false)));
}

TEST_CASE("rotary: gradients of angles, and other types, by LibTorch's operators") {
  at::manual_seed(3);
  auto [cos, sin] = angles({4, 1, 5, 2}, at::kDouble);
  at::Tensor x = at::randn({4, 3, 5, 6}, at::kDouble).requires_grad_();
  for (bool are_neighbours : {false, true}) {
    at::Tensor c = cos.clone().requires_grad_(), s = sin.clone().requires_grad_();
    auto gradients = [&](const at::Tensor& y) {
      return torch::autograd::grad({y.square().sum()}, {x, c, s});
    };
    at::Tensor y = rotary(x, c, s, are_neighbours), wanted = expected(x, c, s, are_neighbours);
    CHECK(is_near(y, wanted));
    auto actual_gradients = gradients(y), wanted_gradients = gradients(wanted);
    for (size_t i = 0; i < 3; ++i) CHECK(is_near(actual_gradients[i], wanted_gradients[i]));
  }
  at::Tensor narrow = x.detach().to(at::kBFloat16);
  at::Tensor y = rotary(narrow, cos.to(at::kFloat), sin.to(at::kFloat));
  CHECK((y.scalar_type() == at::kFloat));
  CHECK(is_near(y, expected(narrow, cos.to(at::kFloat), sin.to(at::kFloat), false)));
  CHECK(at::equal(rotary(x, cos.narrow(-1, 0, 0), sin.narrow(-1, 0, 0)), x));
}

TEST_CASE("rotary: what does not fit is said") {
  at::Tensor x = at::ones({2, 6}), cos = at::ones({2, 3});
  check_contains(message_of([&] {
                   rotary(x, at::ones({2, 4}), at::ones({2, 4}));
                 }),
                 "x is [2, 6], cos [2, 4]");
  check_contains(message_of([&] { rotary(x, cos, at::ones({2, 2})); }), "of one shape");
  check_contains(message_of([&] { rotary(x.to(at::kLong), cos, cos); }), "floating-point");
  check_contains(message_of([&] {
                   rotary(x, at::ones({5, 3}), at::ones({5, 3}));
                 }),
                 "1 or as many");
  check_contains(message_of([&] { rotary(x, at::ones({1, 1, 3}), at::ones({1, 1, 3})); }), "x is");
}

TEST_CASE("rotary of sharded tensors: examples, heads and positions may be split") {
  auto turned = [](bool are_neighbours) {
    return [=](const Tensors& t) -> Tensors {
      return {rotary(t[0], t[1].detach(), t[2].detach(), are_neighbours)};
    };
  };
  run_all(
      {{"rotary", {{{3, 2, 4, 6}}, {{1, 1, 4, 3}}, {{1, 1, 4, 3}}}, turned(false), 2, "012,2,2"},
       {"rotary of neighbours and a rest",
        {{{2, 3, 4, 6}}, {{2, 1, 4, 2}}, {{2, 1, 4, 2}}},
        turned(true),
        2,
        "012,02,02"}});
}
