// Division of the smallest integer by -1, whose quotient does not fit: every operator gives the
// smallest integer again, as LibTorch's other modes of rounding do, on every layout.

#include "sharding_cases.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <vector>

using redco::testing::Case;
using redco::testing::longs;
using redco::testing::Tensors;

namespace {

constexpr at::ScalarType types[] = {at::kChar, at::kShort, at::kInt, at::kLong};

int64_t least(at::ScalarType type) {
  return type == at::kLong ? std::numeric_limits<int64_t>::min()
                           : -(int64_t{1} << (8 * c10::elementSize(type) - 1));
}

// Enough elements for the vectorised part of a kernel and its rest.
at::Tensor dividends(at::ScalarType type) {
  return at::full({35}, least(type), type)
      .index_put_({at::arange(0, 35, 2)}, at::scalar_tensor(7, type));
}

}  // namespace

TEST_CASE("the smallest integer divided by -1 does not end the program") {
  for (at::ScalarType type : types) {
    CAPTURE(type);
    at::Tensor a = dividends(type), strided = at::stack({a, a}, 1).select(1, 0);
    at::Tensor minus = at::full({35}, -1, type), number = at::scalar_tensor(-1, type);
    at::Tensor expected = a.neg();
    for (const char* mode : {"trunc", "floor"}) {
      CAPTURE(mode);
      for (const at::Tensor& self : {a, strided}) {
        CHECK(self.div(minus, mode).equal(expected));
        CHECK(self.div(number, mode).equal(expected));
        CHECK(self.div(-1, mode).equal(expected));
        CHECK(self.clone().div_(minus, mode).equal(expected));
        CHECK(self.clone().div_(-1, mode).equal(expected));
        at::Tensor out = at::empty({0}, a.options());
        CHECK(at::div_out(out, self, minus, mode).equal(expected));
        at::Tensor same = self.clone();
        CHECK(at::div_out(same, same, minus, mode).equal(expected));
        CHECK(self.divide(minus, mode).equal(expected));
      }
      CHECK(at::full({}, least(type), type)
                .div(minus, mode)
                .equal(at::full({35}, least(type), type)));
      CHECK((a.div(-1, mode).scalar_type() == type));
    }
    CHECK(a.floor_divide(minus).equal(expected));
    CHECK(a.remainder(minus).equal(at::zeros_like(a)));
    CHECK(a.fmod(minus).equal(at::zeros_like(a)));
  }
}

TEST_CASE("quotients beside -1 are rounded towards zero") {
  at::Tensor a = at::tensor({7, -7, 7, -7, 9}, at::kInt),
             b = at::tensor({2, 2, -1, -1, -4}, at::kInt);
  CHECK(a.div(b, "trunc").equal(at::tensor({3, -3, -7, 7, -2}, at::kInt)));
  CHECK((a.to(at::kShort).div(b, "trunc").scalar_type() == at::kInt));
  CHECK(a.div(b.unsqueeze(1), "trunc").numel() == 25);
  CHECK(a.div(b.to(at::kDouble), "trunc").equal(at::tensor({3., -3., -7., 7., -2.}, at::kDouble)));
  CHECK_THROWS(a.div(at::zeros_like(b), "trunc"));
  CHECK_THROWS(a.to(at::kDouble).div_(at::tensor({-1}), "nearest"));
  at::Tensor small = a.to(at::kShort);
  CHECK_THROWS(at::div_out(small, a.to(at::kDouble), b, "trunc"));
}

TEST_CASE("sharded integers are divided as whole ones") {
  const int64_t low = std::numeric_limits<int64_t>::min();
  redco::testing::run_all({
      {"div, trunc, of integers",
       {longs({low, 5, low, -7, low, 1, 2, low}, {4, 2}), longs({-1, 2}, {2})},
       [](const Tensors& t) -> Tensors {
         return {t[0].div(t[1], "trunc"), t[0].div(-1, "trunc"), t[0].clone().div_(t[1], "trunc")};
       },
       0},
  });
}
