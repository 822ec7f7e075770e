// Attention of few queries in bfloat16 against LibTorch's in float64.
#include <redco/detail/few_queries.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <doctest/doctest.h>

#include <limits>

namespace redco {

namespace {

at::Tensor exact(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                 const std::optional<at::Tensor>& mask) {
  std::optional<at::Tensor> wide;
  if (mask) wide = mask->scalar_type() == at::kBool ? *mask : mask->to(at::kDouble);
  return at::scaled_dot_product_attention(q.to(at::kDouble), k.to(at::kDouble), v.to(at::kDouble),
                                          wide, 0, false, 0.3);
}

void check(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
           const std::optional<at::Tensor>& mask) {
  const auto y = attention_of_few_queries(q, k, v, mask, 0.3);
  REQUIRE(y);
  CHECK((y->scalar_type() == at::kBFloat16));
  CHECK(at::allclose(y->to(at::kDouble), exact(q, k, v, mask), 1.01 / 256, 1e-5));
}

at::Tensor random(at::IntArrayRef sizes) { return at::randn(sizes).to(at::kBFloat16); }

}  // namespace

TEST_CASE("few queries: sizes, memory orders and masks") {
  at::manual_seed(0);
  for (int64_t n_queries : {1, 2, 7, 16})
    for (int64_t n : {1, 5, 300})
      for (int64_t size : {1, 16, 72}) {
        CAPTURE(n_queries);
        CAPTURE(n);
        CAPTURE(size);
        // As a cache has them, with room for more, and q as a layer gives it.
        const at::Tensor q = random({2, n_queries, 3, size}).transpose(1, 2);
        const at::Tensor k = random({2, 3, n + 4, size}).narrow(2, 0, n),
                         v = random({2, 3, n + 4, 40}).narrow(2, 0, n);
        check(q, k, v, {});
        const at::Tensor seen = at::rand({2, 1, 1, n}) > 0.3;
        check(q, k, v, seen);
        check(q, k, v, at::randn({n_queries, n}));
        check(q, k, v, random({2, 3, n_queries, n}));
      }
}

TEST_CASE("few queries: one that sees nothing is zero") {
  const at::Tensor q = random({1, 1, 1, 8}), k = random({1, 1, 4, 8});
  const auto mask = at::full({1, 4}, -std::numeric_limits<float>::infinity());
  CHECK(at::equal(*attention_of_few_queries(q, k, k, mask, {}), at::zeros_like(q)));
}

TEST_CASE("few queries: what LibTorch has to do") {
  const at::Tensor q = random({1, 2, 1, 8}), k = random({1, 2, 4, 8});
  CHECK(attention_of_few_queries(q, k, k, {}, {}));
  CHECK(!attention_of_few_queries(random({1, 2, 17, 8}), k, k, {}, {}));
  CHECK(!attention_of_few_queries(q.to(at::kFloat), k.to(at::kFloat), k.to(at::kFloat), {}, {}));
  CHECK(!attention_of_few_queries(q, k.transpose(2, 3).contiguous().transpose(2, 3), k, {}, {}));
  CHECK(!attention_of_few_queries(q, random({1, 1, 4, 8}), random({1, 1, 4, 8}), {}, {}));
  CHECK(!attention_of_few_queries(q.to(at::kMeta), k.to(at::kMeta), k.to(at::kMeta), {}, {}));
  const at::Tensor tracked = k.clone().requires_grad_();
  CHECK(!attention_of_few_queries(q, tracked, k, {}, {}));
  const at::NoGradGuard no_grad;
  CHECK(attention_of_few_queries(q, tracked, k, {}, {}));
}

}  // namespace redco
