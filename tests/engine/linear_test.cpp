// redco::linear against at::linear: every number of rows around the limit, both orders of the
// weight in memory, sizes that no vector divides.
#include <redco/nn.h>

#include <ATen/ATen.h>

#include <doctest/doctest.h>

#include <cmath>
#include <utility>

namespace redco {

namespace {

void check(int64_t rows, int64_t n_in, int64_t n_out, bool by_outputs, bool with_bias) {
  CAPTURE(rows);
  CAPTURE(n_in);
  CAPTURE(n_out);
  CAPTURE(by_outputs);
  at::Tensor x = at::randn({rows, n_in});
  at::Tensor weight = by_outputs ? at::randn({n_out, n_in}) : at::randn({n_in, n_out}).t();
  at::Tensor bias = with_bias ? at::randn({n_out}) : at::Tensor();
  at::Tensor expected =
      at::linear(x.to(at::kDouble), weight.to(at::kDouble), with_bias ? bias.to(at::kDouble) : bias)
          .to(at::kFloat);
  at::Tensor y = linear(x, weight, bias);
  CHECK(y.sizes().equals(expected.sizes()));
  CHECK(at::allclose(y, expected, 1e-5, 1e-5 * std::sqrt(double(n_in))));
  CHECK(at::equal(linear(x.view({1, rows, n_in}), weight, bias)[0], y));
}

}  // namespace

TEST_CASE("few rows: the same as at::linear") {
  at::manual_seed(0);
  for (int64_t rows = 1; rows <= 17; ++rows)
    for (bool by_outputs : {true, false})
      for (auto [n_in, n_out] : {std::pair{1, 1}, {3, 5}, {16, 33}, {50, 7}, {131, 1027}})
        check(rows, n_in, n_out, by_outputs, rows % 2 == 0);
  check(3, 700, 2000, true, true);  // enough for several threads
  check(3, 700, 2000, false, true);
}

TEST_CASE("few rows in bfloat16: the sums in float32, rounded once") {
  at::manual_seed(0);
  for (int64_t rows : {1, 2, 4, 5})
    for (bool by_outputs : {true, false})
      for (auto [n_in, n_out] : {std::pair{1, 1}, {3, 5}, {16, 33}, {50, 7}, {131, 1027}}) {
        CAPTURE(rows);
        CAPTURE(n_in);
        at::Tensor x = at::randn({rows, n_in}).to(at::kBFloat16);
        at::Tensor weight = (by_outputs ? at::randn({n_out, n_in}) : at::randn({n_in, n_out}).t())
                                .to(at::kBFloat16);
        at::Tensor exact = at::linear(x.to(at::kDouble), weight.to(at::kDouble));
        at::Tensor y = linear(x, weight, at::Tensor());
        CHECK((y.scalar_type() == at::kBFloat16));
        // Half of the distance between two numbers, and what float32 rounds.
        CHECK(at::allclose(y.to(at::kDouble), exact, 1.01 / 256, 1e-5 * std::sqrt(double(n_in))));
      }
}

TEST_CASE("few rows: what the kernel is not for") {
  at::Tensor x = at::randn({2, 6});
  at::Tensor wide = at::randn({8, 12});
  at::Tensor gaps = wide.narrow(1, 0, 6);
  CHECK(at::allclose(linear(x, gaps, at::Tensor()), at::linear(x, gaps)));
  CHECK(linear(at::randn({0, 6}), gaps, at::Tensor()).sizes().equals({0, 8}));
  CHECK(at::allclose(linear(x[0], gaps, at::Tensor()), at::linear(x[0], gaps)));
  at::Tensor weight = at::randn({8, 6}).requires_grad_();
  linear(x, weight, at::Tensor()).sum().backward();
  CHECK(at::allclose(weight.grad(), x.sum(0).expand({8, 6})));
  CHECK((linear(x.to(at::kBFloat16), wide.narrow(1, 0, 6).to(at::kBFloat16), at::Tensor())
             .scalar_type() == at::kBFloat16));
  CHECK_THROWS(linear(x, at::randn({8, 5}), at::Tensor()));
}

}  // namespace redco
