// The step of AdamW with moments of 8 bits: the kernel of the CPU, the operators of other devices,
// and the formula in doubles. tests/peers compares it with bitsandbytes.
#include "../../engine/kernels/adamw8bit.h"

#include <ATen/Context.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

using namespace redco::kernels;

namespace {

// A parameter of `sizes` whose moments have had a few steps.
Adamw8bitParam random_param(std::vector<int64_t> sizes, at::ScalarType type) {
  Adamw8bitParam p;
  p.param = at::randn(sizes).to(type);
  p.grad = at::randn(sizes).to(type);
  p.exp_avg = at::zeros(sizes, at::kByte);
  p.exp_avg_sq = at::zeros(sizes, at::kByte);
  p.absmax = at::zeros({2, (p.param.numel() + moment_block - 1) / moment_block});
  p.indices = Adamw8bitParam::all_indices(sizes);
  p.sizes = sizes;
  return p;
}

Adamw8bitParam copy_of(const Adamw8bitParam& p) {
  Adamw8bitParam copy = p;
  for (at::Tensor* t : {&copy.param, &copy.grad, &copy.exp_avg, &copy.exp_avg_sq, &copy.absmax})
    *t = t->clone();
  return copy;
}

Adamw8bitOptions options(int64_t step) {
  return {at::tensor(float(step)), 0.01, 0.9, 0.99, 0.1, 1e-8};
}

void step(const Adamw8bitParam& p, int64_t number, bool is_plain = false) {
  adamw8bit_step(
      {p}, options(number), [](at::Tensor&) {}, is_plain);
}

at::Tensor values_of(const at::Tensor& numbers, const at::Tensor& absmax, bool is_signed) {
  at::Tensor scales = absmax.repeat_interleave(moment_block).slice(0, 0, numbers.numel());
  at::Tensor values = dynamic_map(is_signed).index_select(0, numbers.flatten().to(at::kInt));
  return (values * scales).to(at::kDouble).view(numbers.sizes());
}

}  // namespace

TEST_CASE("the dynamic maps are those of bitsandbytes") {
  for (bool is_signed : {true, false}) {
    const at::Tensor& map = dynamic_map(is_signed);
    CHECK(map.numel() == 256);
    CHECK(at::equal(std::get<0>(map.sort()), map));
    CHECK(map[255].item<float>() == 1);
  }
  CHECK(dynamic_map(true)[0].item<float>() == doctest::Approx(-0.99296875));
  CHECK(dynamic_map(true)[127].item<float>() == 0);
  CHECK(dynamic_map(false)[0].item<float>() == 0);
  CHECK(dynamic_map(false)[1].item<float>() == doctest::Approx(3.25e-7));
}

TEST_CASE("steps in 8 bits are AdamW with rounded moments") {
  for (const auto& sizes : std::vector<std::vector<int64_t>>{{7, 100}, {513}, {3, 5, 40}}) {
    Adamw8bitParam p = random_param(sizes, at::kDouble);
    for (int64_t number = 1; number <= 4; ++number) {
      at::Tensor m = values_of(p.exp_avg, p.absmax[0], true);
      at::Tensor v = values_of(p.exp_avg_sq, p.absmax[1], false);
      p.grad = at::randn(sizes, at::kDouble);
      m = 0.9 * m + 0.1 * p.grad;
      v = 0.99 * v + 0.01 * p.grad * p.grad;
      at::Tensor change =
          m / (1 - std::pow(0.9, number)) / ((v / (1 - std::pow(0.99, number))).sqrt() + 1e-8);
      at::Tensor expected = p.param * (1 - 0.01 * 0.1) - 0.01 * change;
      step(p, number);
      CHECK((p.param - expected).abs().max().item<double>() < 1e-12);
      // The widest gaps of the maps, to either side.
      auto check_close = [&](const at::Tensor& kept, const at::Tensor& numbers, bool is_signed,
                             double most) {
        const at::Tensor absmax = p.absmax[is_signed ? 0 : 1];
        at::Tensor off = (values_of(numbers, absmax, is_signed) - kept).abs();
        at::Tensor scales = absmax.repeat_interleave(moment_block).slice(0, 0, off.numel());
        CHECK((off.flatten() / scales).max().item<double>() < most);
      };
      check_close(m, p.exp_avg, true, 0.0071);
      check_close(v, p.exp_avg_sq, false, 0.0036);
    }
  }
}

TEST_CASE("LibTorch's operators give the numbers of the kernel") {
  at::manual_seed(1);  // now and then more numbers lie between two codes
  for (at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    Adamw8bitParam own = random_param({70, 31}, type);
    own.param = own.param.t().contiguous().t();  // another order in memory
    own.exp_avg = own.exp_avg.t().contiguous().t();
    Adamw8bitParam plain = copy_of(own);
    for (int64_t number = 1; number <= 3; ++number) {
      own.grad = plain.grad = at::randn({70, 31}).to(type);
      if (number == 2) own.grad.zero_();
      step(own, number);
      step(plain, number, true);
      CHECK(at::allclose(own.absmax, plain.absmax, 1e-6, 0));
      // Where a value lies on a bound, the last bit decides.
      CHECK(own.exp_avg.ne(plain.exp_avg).sum().item<int64_t>() <= 2);
      CHECK(own.exp_avg_sq.ne(plain.exp_avg_sq).sum().item<int64_t>() <= 2);
      plain.exp_avg.copy_(own.exp_avg);
      plain.exp_avg_sq.copy_(own.exp_avg_sq);
      double most = type == at::kDouble ? 1e-14 : type == at::kFloat ? 1e-6 : 2e-2;
      // Where a moment has become 0, the step is large.
      at::Tensor off = (own.param - plain.param).abs() / plain.param.abs().add(1);
      CHECK(off.max().item<double>() <= most);
    }
  }
}

TEST_CASE("parts of a parameter make the step of the whole") {
  Adamw8bitParam whole = random_param({9, 130}, at::kFloat);
  // Two parts by columns, the first of which has no neighbouring ones.
  std::vector<int64_t> rest;
  for (int64_t i = 0; i < 130; ++i)
    if (i % 3 != 0) rest.push_back(i);
  const std::vector<at::Tensor> columns{at::arange(0, 130, 3), at::tensor(rest)};
  std::vector<Adamw8bitParam> parts;
  for (const at::Tensor& own : columns) {
    Adamw8bitParam part = copy_of(whole);
    for (at::Tensor* t : {&part.param, &part.grad, &part.exp_avg, &part.exp_avg_sq})
      *t = t->index_select(1, own);
    part.indices[1] = own;
    parts.push_back(part);
  }
  for (int64_t number = 1; number <= 3; ++number) {
    whole.grad = at::randn({9, 130});
    for (size_t i = 0; i < 2; ++i) parts[i].grad = whole.grad.index_select(1, columns[i]);
    // The scales of a part alone, and then the maximum of both.
    std::vector<at::Tensor> own(2);
    for (size_t i = 0; i < 2; ++i)
      adamw8bit_step({copy_of(parts[i])}, options(number),
                     [&](at::Tensor& absmax) { own[i] = absmax.clone(); });
    for (size_t i = 0; i < 2; ++i)
      adamw8bit_step({parts[i]}, options(number),
                     [&](at::Tensor& absmax) { absmax.copy_(at::maximum(own[0], own[1])); });
    step(whole, number);
    for (size_t i = 0; i < 2; ++i) {
      CHECK(at::equal(parts[i].absmax, whole.absmax));
      CHECK(at::equal(parts[i].param, whole.param.index_select(1, columns[i])));
      CHECK(at::equal(parts[i].exp_avg, whole.exp_avg.index_select(1, columns[i])));
      CHECK(at::equal(parts[i].exp_avg_sq, whole.exp_avg_sq.index_select(1, columns[i])));
    }
  }
}

TEST_CASE("numbers that are not finite end in the parameter, not in a crash") {
  Adamw8bitParam p = random_param({2, 300}, at::kFloat);
  p.grad[0][3] = NAN;
  p.grad[1][7] = INFINITY;
  step(p, 1);
  step(p, 2);
  CHECK(std::isnan(p.param[0][3].item<float>()));
}
