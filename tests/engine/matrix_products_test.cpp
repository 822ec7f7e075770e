// Float32 products in every form that LibTorch calls BLAS with, beside those of float64.
#include <ATen/ATen.h>
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

namespace {

// oneDNN's part of them also on processors for which it is off. Read at the first product.
[[maybe_unused]] const int asked = setenv("REDCO_ONEDNN_PRODUCTS", "1", 1);

at::Tensor random(at::IntArrayRef sizes) {
  return at::randn(sizes, at::detail::createCPUGenerator(sizes.front() * 31 + sizes.back()));
}

// The matrices [..., rows, columns] as LibTorch may store them.
std::vector<at::Tensor> in_all_layouts(const at::Tensor& t) {
  auto sizes = t.sizes().vec();
  sizes.back() += 3;
  at::Tensor with_gaps = at::full(sizes, std::numeric_limits<float>::quiet_NaN());
  with_gaps.narrow(-1, 0, t.size(-1)).copy_(t);
  return {t, t.transpose(-2, -1).contiguous().transpose(-2, -1),
          with_gaps.narrow(-1, 0, t.size(-1))};
}

void check_close(const at::Tensor& y, const at::Tensor& expected, int64_t inner) {
  // Each element is a sum of `inner` products of normal numbers.
  const double bound = 1e-6 * double(inner);
  CHECK((y.to(at::kDouble) - expected).abs().max().item<double>() < bound);
}

}  // namespace

// The first test, so that no product has run before.
TEST_CASE("a product does not depend on those before it") {
  // Processes that hold copies of a weight have computed other products before.
  const auto products = [] {
    const at::Tensor x = random({384, 128}), w = random({128, 512}), odd = random({300, 341});
    const at::Tensor many = random({700, 300}), batch = random({4, 96, 64});
    const at::Tensor y = x.mm(w), some = many.narrow(0, 0, 333);
    const std::vector<at::Tensor> all{y,
                                      x.t().mm(y),
                                      y.mm(w.t()),
                                      many.mm(odd),
                                      some.mm(odd),
                                      some.t().mm(some.mm(odd)),
                                      batch.bmm(batch.transpose(1, 2))};
    std::vector<at::Tensor> flat;
    for (const at::Tensor& each : all) flat.push_back(each.flatten());
    return at::cat(flat);
  };
  std::FILE* file = std::tmpfile();
  const pid_t other = fork();
  if (other == 0) {
    for (int64_t n = 100; n < 500; n += 2) {
      random({n, 128}).mm(random({128, 512}));
      random({4, n, 64}).bmm(random({4, 64, n}));
    }
    const at::Tensor after = products();
    _exit(std::fwrite(after.data_ptr(), after.nbytes(), 1, file) == 1 && std::fflush(file) == 0
              ? 0
              : 1);
  }
  const at::Tensor first = products();
  int status = -1;
  REQUIRE(waitpid(other, &status, 0) == other);
  REQUIRE(status == 0);
  at::Tensor after = at::empty_like(first);
  std::rewind(file);
  REQUIRE(std::fread(after.data_ptr(), after.nbytes(), 1, file) == 1);
  std::fclose(file);
  CHECK(at::equal(first, after));
}

TEST_CASE("products of matrices, of all sizes and layouts") {
  struct Sizes {
    int64_t rows, inner, columns;
  };
  for (const auto& [rows, inner, columns] : {Sizes{1, 700, 900},
                                             {17, 512, 512},
                                             {63, 300, 200},
                                             {130, 70, 260},
                                             {256, 33, 1000},
                                             {1000, 256, 33},
                                             {5, 6, 7},
                                             {1, 1, 1},
                                             {1, 5, 7},
                                             {5, 1, 7},
                                             {5, 7, 1},
                                             {4, 64, 1},
                                             {64, 4, 1},
                                             {1, 64, 4},
                                             {1, 4, 64},
                                             {300, 1, 9000},
                                             {1, 2000, 3000},
                                             {3000, 2000, 1}}) {
    const at::Tensor a = random({rows, inner}), b = random({inner, columns});
    const at::Tensor exact = a.to(at::kDouble).mm(b.to(at::kDouble));
    for (const auto& x : in_all_layouts(a))
      for (const auto& w : in_all_layouts(b)) {
        check_close(x.mm(w), exact, inner);
        // The transposed result, and one with gaps.
        check_close(w.t().mm(x.t()).t(), exact, inner);
        at::Tensor y = at::zeros({rows, columns + 2}).narrow(1, 1, columns);
        check_close(at::mm_out(y, x, w), exact, inner);
      }
  }
}

TEST_CASE("scaled products and sums") {
  const at::Tensor a = random({200, 150}), b = random({150, 120}), c = random({200, 120});
  const at::Tensor exact = a.to(at::kDouble).mm(b.to(at::kDouble));
  for (double alpha : {1.0, 0.5, -2.0, 0.0})
    for (double beta : {0.0, 1.0, -0.5})
      for (const auto& x : in_all_layouts(a)) {
        check_close(at::addmm(c, x, b, beta, alpha), beta * c.to(at::kDouble) + alpha * exact, 150);
        const at::Tensor y = at::full({200, 130}, 7.0).narrow(1, 0, 120);
        check_close(at::addmm_out(const_cast<at::Tensor&>(y), c, x, b, beta, alpha),
                    beta * c.to(at::kDouble) + alpha * exact, 150);
      }
}

TEST_CASE("the result's old values do not matter") {
  const at::Tensor a = random({200, 150}), b = random({150, 120});
  at::Tensor y = at::full({200, 120}, std::numeric_limits<float>::quiet_NaN());
  at::mm_out(y, a, b);
  CHECK(!y.isnan().any().item<bool>());
  at::Tensor batch = at::full({2, 200, 120}, std::numeric_limits<float>::quiet_NaN());
  at::bmm_out(batch, a.expand({2, 200, 150}), b.expand({2, 150, 120}));
  CHECK(!batch.isnan().any().item<bool>());
}

TEST_CASE("batches of products") {
  const at::Tensor a = random({9, 130, 70}), b = random({9, 70, 60}), c = random({9, 130, 60});
  const at::Tensor exact = a.to(at::kDouble).bmm(b.to(at::kDouble));
  for (const auto& x : in_all_layouts(a))
    for (const auto& w : in_all_layouts(b)) {
      check_close(x.bmm(w), exact, 70);
      check_close(at::baddbmm(c, x, w, 0.5, 2), 0.5 * c.to(at::kDouble) + 2 * exact, 70);
    }
  check_close(a.narrow(0, 0, 1).expand({9, 130, 70}).bmm(b),
              a.narrow(0, 0, 1).to(at::kDouble).matmul(b.to(at::kDouble)), 70);
  check_close(a.narrow(0, 2, 1).bmm(b.narrow(0, 2, 1)), exact.narrow(0, 2, 1), 70);
  // Every other matrix of a batch.
  check_close(a.slice(0, 0, 9, 2).bmm(b.slice(0, 0, 9, 2)), exact.slice(0, 0, 9, 2), 70);
}

TEST_CASE("examples of any number: parts") {
  const at::Tensor w = random({120, 300}), bias = random({300});
  for (int64_t rows = 100; rows < 1500; rows += 11) {
    const at::Tensor x = random({rows, 120}), g = random({rows, 300});
    const at::Tensor x64 = x.to(at::kDouble), w64 = w.to(at::kDouble), g64 = g.to(at::kDouble);
    check_close(at::addmm(bias, x, w, 0.5, 2), 0.5 * bias.to(at::kDouble) + 2 * x64.mm(w64), 120);
    check_close(g.mm(w.t()), g64.mm(w64.t()), 300);
    check_close(at::addmm(w, x.t(), g, 0.5), 0.5 * w64 + x64.t().mm(g64), rows);
  }
}

TEST_CASE("LibTorch calls this library's definitions") {
  for (const char* name : {"sgemm_", "cblas_sgemm_batch"}) {
    Dl_info info{};
    REQUIRE(dladdr(dlsym(RTLD_DEFAULT, name), &info) != 0);
    CHECK(std::string(info.dli_fname).find("libredco") != std::string::npos);
  }
}
