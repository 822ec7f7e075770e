// Attention within segments as it is done on GPUs, with kernels for the CPU in the place of
// LibTorch's flash attention: they check what they are given, and compute by plain operators.
#include "../../engine/kernels/segment_kernels.h"

#include <redco/nn.h>

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <doctest/doctest.h>
#include <torch/library.h>

#include <limits>
#include <optional>
#include <vector>

using redco::kernels::attend_on_cpu;
using redco::kernels::attend_on_cpu_backward;
using redco::kernels::attend_on_gpu;
using redco::kernels::attend_on_gpu_backward;
using redco::kernels::SegmentOptions;

namespace {

using at::Tensor;
using torch::jit::Stack;

// The last arguments of the kernels.
struct Given {
  std::vector<int64_t> ends;
  int64_t longest = 0;
  std::optional<int64_t> left;
} given;

// One sequence: tokens [n, H, D].
struct Sequence {
  Tensor q, k, v, probs, sums;

  Sequence(const Tensor& query, const Tensor& key, const Tensor& value, double scale,
           std::optional<int64_t> left)
      : q(query.transpose(0, 1)), n_shared(query.size(1) / key.size(1)) {
    k = key.transpose(0, 1).repeat_interleave(n_shared, 0);
    v = value.transpose(0, 1).repeat_interleave(n_shared, 0);
    const int64_t n = q.size(1);
    Tensor seen = at::ones({n, n}, at::kBool).tril();
    if (left) seen = seen.triu(-*left);
    Tensor scores = q.matmul(k.transpose(1, 2))
                        .mul(scale)
                        .masked_fill(seen.logical_not(), -std::numeric_limits<double>::infinity());
    probs = scores.softmax(-1);
    sums = scores.logsumexp(-1);
  }

  Tensor of_tokens(const Tensor& heads) const {
    return heads.unflatten(0, {-1, n_shared}).sum(1).transpose(0, 1);
  }

  int64_t n_shared;
};

c10::IValue argument(const Stack& stack, size_t n, size_t i) { return stack[stack.size() - n + i]; }

// Calls `function(first token, end)` with each sequence, or with each row of dense tensors.
template <class Function>
void for_sequences(const Tensor& query, const std::vector<int64_t>& ends,
                   const Function& function) {
  if (query.dim() == 4) {
    for (int64_t row = 0; row < query.size(0); ++row)
      function([row](const Tensor& t) { return t[row]; });
    return;
  }
  for (size_t i = 0; i + 1 < ends.size(); ++i)
    function([&, i](const Tensor& t) { return t.slice(0, ends[i], ends[i + 1]); });
}

// The arguments from `first`, the places where queries end, on: alike for both kernels up to
// whether it is causal.
void read(const Stack& stack, size_t n, size_t first, const Tensor& query) {
  given = {};
  const Tensor ends =
      argument(stack, n, first).isTensor() ? argument(stack, n, first).toTensor() : Tensor();
  CHECK(ends.defined() == (query.dim() == 3));
  if (ends.defined()) {
    CHECK((ends.scalar_type() == at::kInt));
    CHECK(argument(stack, n, first + 1).toTensor().equal(ends));
    for (int64_t i = 0; i < ends.numel(); ++i) given.ends.push_back(ends[i].item<int64_t>());
  }
  given.longest = argument(stack, n, first + 2).toInt();
  CHECK(argument(stack, n, first + 3).toInt() == given.longest);
  CHECK(argument(stack, n, first + 4).toDouble() == 0);  // dropout
  CHECK(argument(stack, n, first + 5).toBool());         // causal
}

double scale_of(const c10::OperatorHandle& op, const Stack& stack) {
  const size_t n = op.schema().arguments().size();
  const auto named = [&](const char* name) {
    return argument(stack, n, size_t(*op.schema().argumentIndexWithName(name)));
  };
  given.left = named("window_size_left").toOptional<int64_t>();
  CHECK(named("window_size_right").toInt() == 0);
  return named("scale").toDouble();
}

void forward(const c10::OperatorHandle& op, Stack* stack) {
  const size_t n = op.schema().arguments().size();
  const Tensor q = argument(*stack, n, 0).toTensor(), k = argument(*stack, n, 1).toTensor(),
               v = argument(*stack, n, 2).toTensor();
  read(*stack, n, 3, q);
  const double scale = scale_of(op, *stack);
  Tensor out = at::empty_like(q);
  Tensor sums = q.dim() == 4 ? q.new_empty({q.size(0), q.size(2), q.size(1)})
                             : q.new_empty({q.size(1), q.size(0)});
  int64_t row = 0;
  for_sequences(q, given.ends, [&](auto part) {
    Sequence s(part(q), part(k), part(v), scale, given.left);
    part(out).copy_(s.probs.matmul(s.v).transpose(0, 1));
    Tensor place = q.dim() == 4 ? sums[row] : part(sums.t()).t();
    place.copy_(s.sums);
    ++row;
  });
  torch::jit::drop(*stack, n);
  torch::jit::push(*stack, out, sums, Tensor(), Tensor(), Tensor());
}

void backward(const c10::OperatorHandle& op, Stack* stack) {
  const size_t n = op.schema().arguments().size();
  std::vector<Tensor> t;  // grad, query, key, value, out, logsumexp
  for (size_t i = 0; i < 6; ++i) t.push_back(argument(*stack, n, i).toTensor());
  read(*stack, n, 6, t[1]);
  const double scale = scale_of(op, *stack);
  Tensor d_q = at::empty_like(t[1]), d_k = at::empty_like(t[2]), d_v = at::empty_like(t[3]);
  int64_t row = 0;
  for_sequences(t[1], given.ends, [&](auto part) {
    Sequence s(part(t[1]), part(t[2]), part(t[3]), scale, given.left);
    CHECK(at::allclose(t[1].dim() == 4 ? t[5][row] : part(t[5].t()).t(), s.sums));
    CHECK(at::allclose(part(t[4]), s.probs.matmul(s.v).transpose(0, 1)));
    Tensor grad = part(t[0]).transpose(0, 1), d_probs = grad.matmul(s.v.transpose(1, 2));
    Tensor d_scores = s.probs * (d_probs - (s.probs * d_probs).sum(-1, true)) * scale;
    part(d_q).copy_(d_scores.matmul(s.k).transpose(0, 1));
    part(d_k).copy_(s.of_tokens(d_scores.transpose(1, 2).matmul(s.q)));
    part(d_v).copy_(s.of_tokens(s.probs.transpose(1, 2).matmul(grad)));
    ++row;
  });
  torch::jit::drop(*stack, n);
  torch::jit::push(*stack, d_q, d_k, d_v);
}

TORCH_LIBRARY_IMPL(aten, CPU, m) {
  m.impl("_flash_attention_forward", torch::CppFunction::makeFromBoxedFunction<&forward>());
  m.impl("_flash_attention_backward", torch::CppFunction::makeFromBoxedFunction<&backward>());
}

void check_close(const Tensor& actual, const Tensor& expected) {
  CHECK(actual.sizes() == expected.sizes());
  CHECK(at::allclose(actual, expected, 1e-10, 1e-10));
}

void compare(int64_t n_shared, const std::optional<Tensor>& ids, std::optional<int64_t> window) {
  const SegmentOptions options{ids, window, 0.4};
  Tensor q = at::randn({2, 9, 4, 8}, at::kDouble).transpose(1, 2), grad = at::randn_like(q);
  Tensor k = at::randn({2, n_shared, 9, 8}, at::kDouble), v = at::randn_like(k);
  auto [out, sums] = attend_on_gpu(q, k, v, options);
  auto [expected, expected_sums] = attend_on_cpu(q, k, v, options);
  check_close(out, expected);
  check_close(sums, expected_sums);
  CHECK(out.transpose(1, 2).is_contiguous());
  CHECK(sums.is_contiguous());
  auto [a, b, c] = attend_on_gpu_backward(grad, q, k, v, out, sums, options);
  auto [x, y, z] = attend_on_cpu_backward(grad, q, k, v, out, sums, options);
  check_close(a, x);
  check_close(b, y);
  check_close(c, z);
}

}  // namespace

TEST_CASE("sequences are joined, with the places where they end") {
  Tensor ids =
      at::tensor({1, 1, 2, 2, 2, 2, 3, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4, 4}, at::kLong).view({2, 9});
  for (int64_t n_shared : {4, 2}) {
    compare(n_shared, ids, {});
    CHECK(given.ends == std::vector<int64_t>{0, 2, 6, 7, 9, 18});
    CHECK(given.longest == 9);
    CHECK_FALSE(given.left);
    compare(n_shared, ids.narrow(0, 0, 1).expand({2, 9}), 3);
    CHECK(given.ends == std::vector<int64_t>{0, 2, 6, 7, 9, 11, 15, 16, 18});
    CHECK(given.longest == 4);
    CHECK(given.left.value_or(0) == 2);
  }
}

TEST_CASE("a window alone leaves rows apart") {
  compare(2, {}, 4);
  CHECK(given.ends.empty());
  CHECK(given.longest == 9);
  CHECK(given.left.value_or(0) == 3);
}
