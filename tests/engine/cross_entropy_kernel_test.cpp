// The kernels for GPUs, compiled for the CPU, beside LibTorch's operators.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "cuda_on_cpu.h"

namespace {

#include "../../engine/kernels/cross_entropy.cu"

constexpr int64_t n_rows = 6, n_classes = 21;

struct Results {
  at::Tensor losses, gradients;  // [rows], [rows, classes]
};

// The classes in two parts, as two ranks hold them, or in one.
template <class Type, class Reduce, class Differentiate>
Results by_kernels(Reduce reduce, Differentiate differentiate, const at::Tensor& logits,
                   const at::Tensor& labels, const at::Tensor& ignored, double smoothing,
                   int64_t n_first, bool needs_gradient = true) {
  std::vector<at::Tensor> parts, normalizers, sums;
  auto rows_of = [&](size_t i) {
    int64_t n = i == 0 ? n_first : n_classes - n_first;
    return Rows<Type>{static_cast<typename Type::Stored*>(parts[i].mutable_data_ptr()), n,
                      parts[i].size(1)};
  };
  auto for_each_row = [](const auto& function) {
    for (blockIdx.x = 0; blockIdx.x < n_rows; ++blockIdx.x) function();
  };
  for (auto [begin, n] :
       {std::pair{int64_t{0}, n_first}, std::pair{n_first, n_classes - n_first}}) {
    if (n == 0) continue;
    at::Tensor x = at::full({n_rows, (n + 7) / 8 * 8}, 7, logits.options());
    x.narrow(1, 0, n).copy_(logits.narrow(1, begin, n));
    parts.push_back(x);
    for (auto* list : {&normalizers, &sums}) list->push_back(at::empty({n_rows}, at::kFloat));
    for_each_row([&] {
      reduce(rows_of(parts.size() - 1), normalizers.back().mutable_data_ptr<float>(),
             sums.back().mutable_data_ptr<float>());
    });
  }
  at::Tensor normalizer = at::stack(normalizers).logsumexp(0);
  if (parts.size() == 1) normalizer = normalizers[0];
  Results results{at::zeros({n_rows}), {}};
  for (size_t i = 0; i < parts.size(); ++i) {
    at::Tensor own = labels - int64_t(i) * n_first, losses = at::empty({n_rows}, at::kFloat);
    at::Tensor missing = own.lt(0).logical_and(labels.ge(0));
    missing.logical_or_(own.ge(rows_of(i).n_classes).logical_and(labels.lt(n_classes)));
    const Target target{reinterpret_cast<const i64*>(own.const_data_ptr<int64_t>()),
                        missing.const_data_ptr<bool>(),
                        ignored.const_data_ptr<bool>(),
                        normalizer.const_data_ptr<float>(),
                        sums[i].const_data_ptr<float>(),
                        float(smoothing),
                        n_classes};
    for_each_row([&] {
      differentiate(rows_of(i), target, losses.mutable_data_ptr<float>(), needs_gradient);
    });
    results.losses += losses;
    int64_t n = rows_of(i).n_classes, n_added = parts[i].size(1) - n;
    if (needs_gradient) CHECK(parts[i].narrow(1, n, n_added).eq(0).all().item<bool>());
    parts[i] = parts[i].narrow(1, 0, n);
  }
  results.gradients = at::cat(parts, 1);
  return results;
}

Results by_operators(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& ignored,
                     double smoothing) {
  c10::AutoGradMode grad_mode(true);
  at::Tensor x = logits.to(at::kDouble).requires_grad_();
  at::Tensor losses = at::cross_entropy_loss(x, labels.masked_fill(ignored, -100), {},
                                             at::Reduction::None, -100, smoothing);
  losses.sum().backward();
  return {losses.detach(), x.grad()};
}

template <class Type, class Reduce, class Differentiate>
void check(Reduce reduce, Differentiate differentiate, at::ScalarType dtype, double bound) {
  at::manual_seed(1);
  // Large values would overflow exp.
  at::Tensor logits = (at::randn({n_rows, n_classes}) * 50 + 200).to(dtype);
  at::Tensor labels = at::randint(n_classes, {n_rows}, at::kLong);
  at::Tensor ignored = at::zeros({n_rows}, at::kBool);
  ignored[2] = true;
  for (double smoothing : {0.0, 0.1}) {
    CAPTURE(smoothing);
    Results expected = by_operators(logits, labels, ignored, smoothing);
    for (int64_t n_first : {n_classes, int64_t{9}}) {
      Results actual =
          by_kernels<Type>(reduce, differentiate, logits, labels, ignored, smoothing, n_first);
      CHECK(at::allclose(actual.losses.to(at::kDouble), expected.losses, 1e-5, 1e-4));
      CHECK(at::allclose(actual.gradients.to(at::kDouble), expected.gradients, bound, 1e-6));
    }
  }
  Results loss_only = by_kernels<Type>(reduce, differentiate, logits, labels, ignored, 0, n_classes,
                                       /*needs_gradient=*/false);
  CHECK(at::equal(loss_only.gradients, logits));
}

}  // namespace

TEST_CASE("the kernels of cross-entropy give the losses and gradients of LibTorch") {
  check<Float>(reduce_float, differentiate_float, at::kFloat, 1e-4);
  check<BFloat16>(reduce_bfloat16, differentiate_bfloat16, at::kBFloat16, 1.0 / 256);
  check<Half>(reduce_half, differentiate_half, at::kHalf, 1.0 / 1024);
}

TEST_CASE("the kernels of cross-entropy: classes of weight 0, and no number") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  at::Tensor logits = at::zeros({n_rows, n_classes});
  logits[0].narrow(0, 0, 20).fill_(-infinity);  // one class is left
  logits[1].fill_(-infinity);
  logits[2][3] = infinity;
  logits[3][3] = std::nanf("");
  logits[4][0] = -infinity;
  at::Tensor labels = at::full({n_rows}, 20, at::kLong), none = at::zeros({n_rows}, at::kBool);
  auto run = [&](const at::Tensor& ignored) {
    return by_kernels<Float>(reduce_float, differentiate_float, logits, labels, ignored, 0,
                             n_classes);
  };
  Results actual = run(none), expected = by_operators(logits, labels, none, 0);
  CHECK(at::allclose(actual.losses.to(at::kDouble), expected.losses, 1e-6, 1e-6, true));
  CHECK(at::allclose(actual.gradients.to(at::kDouble), expected.gradients, 1e-6, 1e-6, true));
  // An ignored row counts nothing, whatever its logits are.
  Results ignored = run(at::ones({n_rows}, at::kBool));
  CHECK(ignored.losses.eq(0).all().item<bool>());
  CHECK(ignored.gradients.eq(0).all().item<bool>());
}

TEST_CASE("the kernels of cross-entropy: a label out of range gives NaN, in its row") {
  at::Tensor logits = at::randn({n_rows, n_classes}), none = at::zeros({n_rows}, at::kBool);
  for (int64_t wrong : {int64_t{-1}, n_classes, int64_t{1} << 40})
    for (int64_t n_first : {n_classes, int64_t{9}}) {
      at::Tensor labels = at::full({n_rows}, 3, at::kLong);
      labels[2] = wrong;
      Results actual =
          by_kernels<Float>(reduce_float, differentiate_float, logits, labels, none, 0, n_first);
      at::Tensor is_wrong = labels.ne(3);
      CHECK(at::equal(actual.losses.isnan(), is_wrong));
      CHECK(at::equal(actual.gradients.isnan().all(1), is_wrong));
      CHECK(at::equal(actual.gradients.isnan().any(1), is_wrong));
    }
}
