// Softmax with dropout as one operator, beside the operators that it is made of.
#include <redco/error.h>
#include <redco/nn.h>
#include <redco/random.h>

#include "selection.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cuda_on_cpu.h"

using namespace redco;

namespace {

namespace on_gpu {
#include "../../engine/kernels/random/softmax_dropout.cu"
}

constexpr double infinity = std::numeric_limits<double>::infinity();

at::Tensor plain(const at::Tensor& scores, const std::optional<at::Tensor>& mask, double scale,
                 double p, const at::Generator& rng) {
  at::Tensor all = scores * scale;
  if (mask && mask->scalar_type() == at::kBool)
    all = all.masked_fill(mask->logical_not(), -infinity);
  else if (mask)
    all = all + *mask;
  return dropout(at::_safe_softmax(all, -1), p, rng);
}

// The values, the gradient and the gradient of its norm.
std::vector<at::Tensor> derivatives(const at::Tensor& y, const at::Tensor& scores,
                                    const at::Tensor& grad) {
  auto once = torch::autograd::grad({y}, {scores}, {grad}, true, false);
  auto graph = torch::autograd::grad({y}, {scores}, {grad}, true, true);
  CHECK(at::allclose(once[0], graph[0], 1e-4, 1e-4));
  auto twice = torch::autograd::grad({graph[0].square().sum()}, {scores, grad}, {}, true, false);
  return {y.detach(), once[0], twice[0], twice[1]};
}

// Masks for scores [2, 3, 5, 16], broadcast in several ways; some rows see nothing.
std::vector<std::pair<std::string, std::optional<at::Tensor>>> masks(at::ScalarType dtype) {
  at::Tensor seen = at::rand({5, 16}).gt(0.3);
  seen[2].zero_();
  at::Tensor added = at::randn({2, 1, 5, 16}).to(dtype);
  added[1][0][3].fill_(-infinity);
  return {{"none", std::nullopt},
          {"causal", at::ones({5, 16}, at::kBool).tril()},
          {"a query without keys", seen},
          {"padding", at::rand({2, 1, 1, 16}).gt(0.4)},
          {"of heads", at::rand({3, 1, 16}).gt(0.4)},
          {"added", added},
          {"transposed", at::randn({16, 5}).to(dtype).t()}};
}

}  // namespace

TEST_CASE("softmax_dropout: values and derivatives of its parts, in three dtypes") {
  at::manual_seed(3);
  for (at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16})
    for (const auto& [name, mask] : masks(dtype)) {
      CAPTURE(dtype);
      CAPTURE(name);
      const double bound = dtype == at::kDouble ? 1e-12 : dtype == at::kFloat ? 1e-5 : 0.03;
      at::Tensor scores = at::randn({2, 3, 5, 16}).mul(3).to(dtype).requires_grad_();
      at::Tensor grad = at::randn({2, 3, 5, 16}).to(dtype).requires_grad_();
      at::Generator rng = make_rng(5), other = make_rng(5);
      at::Tensor y = softmax_dropout(scores, mask, 0.5, 0.3, rng);
      at::Tensor expected = plain(scores, mask, 0.5, 0.3, other);
      CHECK(at::equal(y.eq(0), expected.eq(0)));
      CHECK(counter_generator(rng)->count() == 1);
      if (dtype == at::kBFloat16) {  // what is between the parts is rounded there
        CHECK(at::allclose(y, expected, bound, bound));
        continue;
      }
      auto found = derivatives(y, scores, grad), wanted = derivatives(expected, scores, grad);
      for (size_t i = 0; i < found.size(); ++i) {
        CAPTURE(i);
        CHECK(at::allclose(found[i], wanted[i], bound, bound));
      }
    }
}

TEST_CASE("softmax_dropout: a mask that is trained, and a generator of LibTorch") {
  at::Tensor scores = at::randn({2, 5, 16}).requires_grad_();
  at::Tensor mask = at::randn({5, 16}).requires_grad_();
  at::Tensor y = softmax_dropout(scores, mask, 1, 0.3, make_rng(5));
  at::Tensor expected = plain(scores, mask, 1, 0.3, make_rng(5));
  CHECK(at::allclose(y, expected));
  auto found = torch::autograd::grad({y.square().sum()}, {mask});
  auto wanted = torch::autograd::grad({expected.square().sum()}, {mask});
  CHECK(at::allclose(found[0], wanted[0], 1e-5, 1e-6));
  at::Generator rng = at::detail::createCPUGenerator(7), other = at::detail::createCPUGenerator(7);
  CHECK(at::allclose(softmax_dropout(scores, std::nullopt, 1, 0.3, rng),
                     plain(scores, std::nullopt, 1, 0.3, other)));
  CHECK_THROWS_AS(softmax_dropout(scores, std::nullopt, 1, 1.5, make_rng(5)), Error);
  // NaN is not hidden by a mask of nothing.
  CHECK(softmax_dropout(at::full({1, 16}, NAN), std::nullopt, 1, 0.0, make_rng(5))
            .isnan()
            .all()
            .item<bool>());
}

namespace {

using namespace on_gpu;

// The numbers of whole tensors, as of a stream with this key.
template <class Type, class Kernel, class Backward>
void compare(Kernel kernel, Backward backward, at::ScalarType dtype, double bound) {
  using Stored = typename Type::Stored;
  constexpr i64 n = 16, n_rows = 30, n_units = n / Pack<Stored>::n;
  constexpr uint64_t key = 11;
  for (const auto& [name, mask] : masks(dtype)) {
    CAPTURE(name);
    const at::Tensor scores = at::randn({2, 3, 5, n}).mul(3).to(dtype),
                     grad = at::randn({2, 3, 5, n}).to(dtype);
    at::Tensor probs = at::empty_like(scores), dropped = at::empty_like(scores),
               d_scores = at::empty_like(scores);
    auto data = [](const at::Tensor& tensor) { return static_cast<Stored*>(tensor.data_ptr()); };
    auto packs = [](const at::Tensor& tensor) {
      return static_cast<Pack<Stored>*>(tensor.data_ptr());
    };
    MaskRows rows{};
    at::Tensor whole;
    if (mask) {
      whole = mask->expand(scores.sizes());
      if (whole.stride(-1) != 1) whole = whole.contiguous();
      rows.n_dims = 3;
      for (int d = 0; d < 3; ++d) {
        rows.sizes.of[d] = whole.size(d);
        rows.strides.of[d] = whole.stride(d);
      }
    }
    const void* of_mask = mask ? whole.const_data_ptr() : nullptr;
    const bool is_boolean = mask && whole.scalar_type() == at::kBool;
    const Words words{key, 0, n_rows * n, 0, {}, {}};
    const u32 last = u32(0.7 * 4294967296.0);
    gridDim.x = int(n_rows);
    for (blockIdx.x = 0; blockIdx.x < n_rows; ++blockIdx.x) {
      kernel(data(scores), of_mask, is_boolean, rows, 0.5F, data(probs), data(dropped), n_units,
             words, last, 1.5F);
      backward(packs(grad), packs(probs), packs(dropped), packs(d_scores), n_units, 0.5F, 1.5F);
    }
    at::Tensor all = scores.to(at::kDouble) * 0.5;
    if (is_boolean) all = all.masked_fill(mask->logical_not(), -infinity);
    if (mask && !is_boolean) all = all + *mask;
    const at::Tensor expected = at::_safe_softmax(all, -1);
    CHECK(at::allclose(probs.to(at::kDouble), expected, bound, bound));
    at::Tensor kept = at::zeros({n_rows * n}, at::kBool);
    for (i64 i = 0; i < n_rows * n; ++i)
      kept[i] = bits_at<u32>(philox(u64(i) / 4, key), u64(i)) <= last;
    kept = kept.view({2, 3, 5, n});
    CHECK(at::allclose(dropped.to(at::kDouble), expected * kept * 1.5, bound, bound));
    const at::Tensor g = grad.to(at::kDouble), used = dropped.to(at::kDouble);
    const at::Tensor of_probs = g * 1.5 * used.ne(0);
    const at::Tensor wanted = expected * (of_probs - (g * used).sum(-1, true)) * 0.5;
    CHECK(at::allclose(d_scores.to(at::kDouble), wanted, 3 * bound, 3 * bound));
  }
}

}  // namespace

TEST_CASE("softmax_dropout: the kernels for GPUs") {
  at::manual_seed(4);
  compare<Float>(softmax_dropout_float, softmax_dropout_backward_float, at::kFloat, 1e-6);
  compare<BFloat16>(softmax_dropout_bfloat16, softmax_dropout_backward_bfloat16, at::kBFloat16,
                    1.0 / 128);
  compare<Half>(softmax_dropout_half, softmax_dropout_backward_half, at::kHalf, 1.0 / 512);
}
