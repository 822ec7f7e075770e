// Attention within segments and windows against LibTorch's with a mask.

#include "../../engine/kernels/segment_kernels.h"

#include <redco/autocast.h>
#include <redco/detail/plain_attention.h>
#include <redco/error.h>
#include <redco/nn.h>

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include <optional>
#include <string>
#include <vector>

using redco::segment_attention;
using redco::kernels::segments_of;

namespace {

using Tensors = std::vector<at::Tensor>;
using Ids = std::optional<at::Tensor>;
using Window = std::optional<int64_t>;

struct Sizes {
  int64_t batch = 2, heads = 4, shared = 4, length = 12, size = 8, value_size = 8;
};

at::Tensor ids_of(std::vector<int64_t> ids, int64_t batch) {
  const int64_t length = int64_t(ids.size()) / batch;
  return at::tensor(ids, at::kLong).view({batch, length});
}

// Two rows: padding at both ends, and one sequence.
at::Tensor two_rows() {
  return ids_of({0, 0, 3, 3, 3, 3, 3, 1, 2, 2, 0, 0, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5}, 2);
}

// Runs of up to 150 tokens.
at::Tensor long_rows(int64_t batch, int64_t length) {
  at::Tensor ids = at::empty({batch, length}, at::kLong);
  for (int64_t row = 0; row < batch; ++row)
    ids[row].copy_((at::arange(length) + 40 * row).floor_divide(150));
  return ids;
}

Tensors random_heads(const Sizes& s, at::ScalarType dtype) {
  at::Tensor tokens = at::randn({s.batch, s.length, s.heads, s.size}, at::kDouble);
  return {tokens.transpose(1, 2).to(dtype),
          at::randn({s.batch, s.shared, s.length, s.size}, at::kDouble).to(dtype),
          at::randn({s.batch, s.shared, s.length, s.value_size}, at::kDouble).to(dtype)};
}

at::Tensor with_mask(const Tensors& t, const Ids& ids, Window window) {
  redco::PlainAttention plain;
  return at::scaled_dot_product_attention(t[0], t[1], t[2], redco::segment_mask(t[0], ids, window),
                                          0, false, 0.3, t[0].size(1) != t[1].size(1));
}

at::Tensor without_mask(const Tensors& t, const Ids& ids, Window window) {
  return segment_attention(t[0], t[1], t[2], ids, window, 0.3);
}

// The result and the gradients, in double.
template <class Function>
Tensors computed(const Function& attend, Tensors leaves, const Ids& ids, Window window) {
  for (at::Tensor& leaf : leaves) leaf = leaf.detach().clone().requires_grad_();
  at::Tensor y = attend(leaves, ids, window);
  at::Tensor grad = at::linspace(-1, 1, y.numel(), at::kDouble).sin().view(y.sizes());
  Tensors all{y.detach()};
  for (const at::Tensor& each : torch::autograd::grad({y}, leaves, {grad.to(y.scalar_type())}))
    all.push_back(each);
  for (at::Tensor& each : all) each = each.to(at::kDouble);
  return all;
}

void compare(const Sizes& s, const Ids& ids, Window window) {
  for (at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    Tensors heads = random_heads(s, dtype), exact;
    for (const at::Tensor& each : heads) exact.push_back(each.to(at::kDouble));
    Tensors expected = computed(with_mask, exact, ids, window);
    Tensors actual = computed(without_mask, heads, ids, window);
    const double bound = dtype == at::kDouble     ? 1e-12
                         : dtype == at::kFloat    ? 1e-5
                         : dtype == at::kBFloat16 ? 0.05
                                                  : 0.01;
    for (size_t i = 0; i < expected.size(); ++i) {
      CAPTURE(dtype);
      CAPTURE(i);
      CAPTURE((actual[i] - expected[i]).abs().max().item<double>());
      CHECK(at::allclose(actual[i], expected[i], bound, bound));
    }
  }
}

template <class Function>
std::string error_of(const Function& function) {
  try {
    function();
  } catch (const redco::Error& error) {
    return error.what();
  }
  return "";
}

void check_error(const Tensors& t, const Ids& ids, Window window, const char* part) {
  const std::string error = error_of([&] { without_mask(t, ids, window); });
  CAPTURE(error);
  CHECK(error.find(part) != std::string::npos);
}

}  // namespace

TEST_CASE("sequences of rows") {
  compare({}, two_rows(), {});
  compare({.shared = 2}, two_rows(), {});
  compare({.shared = 1, .value_size = 5}, two_rows(), {});
  compare({}, two_rows().to(at::kInt), {});
  compare({.batch = 3, .length = 400}, long_rows(3, 400), {});
  compare({.batch = 1, .length = 1}, ids_of({7}, 1), {});
}

TEST_CASE("windows, also of sequences") {
  for (int64_t window : {1, 3, 11, 12, 100}) compare({}, {}, window);
  for (int64_t window : {1, 3, 100}) compare({.shared = 2}, two_rows(), window);
  for (int64_t window : {1, 70, 150, 399}) compare({.shared = 2, .length = 400}, {}, window);
  compare({.length = 700, .value_size = 12}, {}, 600);
  compare({.batch = 3, .length = 400}, long_rows(3, 400), 64);
}

TEST_CASE("heads whose elements are apart, and an expanded gradient") {
  const auto summed = [](auto attend, const Tensors& heads) {
    Tensors leaves;
    for (const at::Tensor& each : heads)
      leaves.push_back(each.transpose(2, 3).contiguous().requires_grad_());
    Tensors apart;
    for (const at::Tensor& each : leaves) apart.push_back(each.transpose(2, 3));
    return torch::autograd::grad({attend(apart, two_rows(), 3).sum()}, leaves);
  };
  Tensors heads = random_heads({.shared = 2}, at::kDouble);
  Tensors expected = summed(with_mask, heads), actual = summed(without_mask, heads);
  for (size_t i = 0; i < 3; ++i) CHECK(at::allclose(actual[i], expected[i], 1e-12, 1e-12));
}

TEST_CASE("without examples or tokens") {
  for (auto [batch, length] : {std::pair<int64_t, int64_t>{0, 12}, {2, 0}})
    compare({.batch = batch, .length = length}, at::ones({batch, length}, at::kLong), 3);
}

TEST_CASE("a second derivative") {
  const auto second = [](auto attend, const Tensors& heads) {
    Tensors leaves;
    for (const at::Tensor& each : heads) leaves.push_back(each.clone().requires_grad_());
    at::Tensor y = attend(leaves, two_rows(), 3).sin().sum();
    Tensors first = torch::autograd::grad({y}, leaves, {}, true, /*create_graph=*/true);
    at::Tensor sum = first[0].sin().sum() + (first[1] * first[2]).sum();
    return torch::autograd::grad({sum}, leaves);
  };
  Tensors heads = random_heads({.shared = 2}, at::kDouble);
  Tensors expected = second(with_mask, heads), actual = second(without_mask, heads);
  for (size_t i = 0; i < 3; ++i) CHECK(at::allclose(actual[i], expected[i], 1e-10, 1e-10));
}

TEST_CASE("autocast computes in its dtype") {
  Tensors heads = random_heads({}, at::kFloat), low;
  for (const at::Tensor& each : heads) low.push_back(each.to(at::kBFloat16));
  redco::Autocast autocast(c10::kCPU, at::kBFloat16);
  at::Tensor y = without_mask(heads, two_rows(), {});
  CHECK((y.scalar_type() == at::kBFloat16));
  CHECK(y.equal(without_mask(low, two_rows(), {})));
}

TEST_CASE("segments are read once, and again when they are written") {
  at::Tensor ids = two_rows();
  auto segments = segments_of(ids);
  CHECK(segments->all.size() == 6);
  CHECK(segments->longest == 12);
  CHECK(segments->ends.equal(at::tensor({0, 2, 7, 8, 10, 12, 24}, at::kInt)));
  CHECK(segments_of(ids) == segments);
  CHECK(segments_of(ids.clone()) != segments);
  ids[1].narrow(0, 0, 2).fill_(1);
  CHECK(segments_of(ids)->all.size() == 7);
}

TEST_CASE("wrong arguments") {
  Tensors heads = random_heads({}, at::kFloat);
  check_error(heads, two_rows().to(at::kFloat), {}, "expected integers, got Float");
  check_error(heads, two_rows().narrow(1, 0, 11), {}, "expected [2, 12]");
  check_error(heads, two_rows().to(at::kMeta), {}, "segment_ids are on meta, q is on cpu");
  check_error(heads, {}, 0, "window: expected at least 1, got 0");
  check_error(heads,
              ids_of({1, 1, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, 2),
              {}, "row 0 has the number 1 in two places, the second from 4");
  check_error({heads[0], heads[1].narrow(1, 0, 3), heads[2]}, {}, 3, "expected k and v");
  check_error({heads[0], heads[1].narrow(2, 0, 3), heads[2]}, {}, 3, "expected k and v");
  check_error({heads[0], heads[1], heads[2].to(at::kHalf)}, {}, 3, "must have one dtype");
  check_error({heads[0][0], heads[1], heads[2]}, {}, 3, "expected q [batch, heads, length, size]");
}
