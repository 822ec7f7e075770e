#include "../../engine/kernels/random/fill.h"
#include "../../engine/kernels/random/philox.h"
#include "../../engine/kernels/random/words.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

using namespace redco;
using namespace redco::random;

namespace {

// The vectors of Random123's kat_vectors for philox4x32, 10 rounds.
TEST_CASE("Philox4x32-10 gives the published numbers") {
  using philox::Block;
  CHECK(philox::block({0, 0, 0, 0}, 0) == Block{0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8});
  uint32_t ones = 0xFFFFFFFF;
  CHECK(philox::block({ones, ones, ones, ones}, ~uint64_t(0)) ==
        Block{0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD});
  CHECK(philox::block({0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344}, 0x299F31D0A4093822) ==
        Block{0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1});
}

TEST_CASE("words: any piece of a stream is the same as a part of the whole, on any path") {
  constexpr uint64_t key = 0x0123456789ABCDEF;
  for (uint64_t base : {uint64_t(0), uint64_t(1) << 33, (uint64_t(1) << 34) - 8}) {
    CAPTURE(base);
    std::vector<uint32_t> whole(300);
    for (uint64_t i = 0; i < 300; ++i) {
      uint64_t number = (base + i) / 4;
      whole[i] = philox::block({uint32_t(number), uint32_t(number >> 32), 0, 0}, key)[i % 4];
    }
    for (int first : {0, 1, 3, 4, 63, 64, 65})
      for (int n : {0, 1, 2, 5, 64, 127, 200}) {
        std::vector<uint32_t> piece(n);
        words(piece.data(), base + uint64_t(first), n, key);
        CHECK(std::equal(piece.begin(), piece.end(), whole.begin() + first));
      }
    at::Tensor places = at::arange(300, at::kLong) + int64_t(base);
    at::Tensor one = words_at(places, key), two = wide_words_at(places.floor_divide(2), key);
    for (int i = 0; i < 300; ++i) {
      CHECK(one[i].item<int64_t>() == int64_t(whole[i]));
      CHECK(uint32_t(two[i].item<int64_t>() >> (i % 2 * 32)) == whole[i]);
    }
  }
}

struct Filler {
  const char* name;
  std::function<void(at::Tensor, const Stream&)> fill, by_operators;
  std::vector<at::ScalarType> types;
};

const std::vector<at::ScalarType> floating = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16};

const std::vector<Filler> fillers = {
    {"uniform", [](auto t, auto& s) { fill_uniform(t, s, -1, 2); },
     [](auto t, auto& s) { by_operators::fill_uniform(t, s, -1, 2); }, floating},
    {"open uniform",
     [](auto t, auto& s) { fill_open_uniform(t, s); },
     [](auto t, auto& s) { by_operators::fill_open_uniform(t, s); },
     {at::kDouble}},
    {"normal", [](auto t, auto& s) { fill_normal(t, s, 1, 3); },
     [](auto t, auto& s) { by_operators::fill_normal(t, s, 1, 3); }, floating},
    {"bernoulli",
     [](auto t, auto& s) { fill_bernoulli(t, s, 0.3); },
     [](auto t, auto& s) { by_operators::fill_bernoulli(t, s, 0.3); },
     {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kBool, at::kByte, at::kLong}},
    {"integers",
     [](auto t, auto& s) { fill_integers(t, s, -3, 100); },
     [](auto t, auto& s) { by_operators::fill_integers(t, s, -3, 100); },
     {at::kLong, at::kInt, at::kShort, at::kChar, at::kFloat, at::kDouble}},
    {"many integers",
     [](auto t, auto& s) { fill_integers(t, s, -3, uint64_t(1) << 40); },
     [](auto t, auto& s) { by_operators::fill_integers(t, s, -3, uint64_t(1) << 40); },
     {at::kLong, at::kDouble}},
    {"all integers",
     [](auto t, auto& s) { fill_integers(t, s, 0, 0); },
     [](auto t, auto& s) { by_operators::fill_integers(t, s, 0, 0); },
     {at::kLong}}};

template <class Check>
void for_each_filler(const Check& check) {
  for (const Filler& filler : fillers)
    for (at::ScalarType type : filler.types) {
      CAPTURE(filler.name);
      CAPTURE(type);
      check(filler, type);
    }
}

at::Tensor filled(const Filler& filler, at::ScalarType type, at::IntArrayRef sizes,
                  uint64_t key = 7, int64_t first = 0) {
  at::Tensor out = at::empty(sizes, type);
  filler.fill(out, {key, Region::whole(sizes), first});
  return out;
}

TEST_CASE("a part of a tensor gets the numbers it has in the whole") {
  c10::SmallVector<int64_t, 4> sizes = {5, 6, 7, 9};
  for_each_filler([&](const Filler& filler, at::ScalarType type) {
    at::Tensor whole = filled(filler, type, sizes);
    for (size_t dim = 0; dim < sizes.size(); ++dim)
      for (int64_t start = 0; start < sizes[dim]; start += 2)
        for (int64_t length = 1; length <= sizes[dim] - start; length += 2) {
          Region region = Region::whole(sizes);
          region.starts[dim] = start;
          at::Tensor expected = whole.narrow(int64_t(dim), start, length);
          at::Tensor part = at::empty(expected.sizes(), type);
          filler.fill(part, {7, region});
          REQUIRE(at::equal(part, expected));
        }
    Region box = Region::whole(sizes);
    box.starts = {1, 2, 3, 4};
    at::Tensor part = at::empty({2, 3, 4, 5}, type);
    filler.fill(part, {7, box});
    CHECK(at::equal(part, whole.narrow(0, 1, 2).narrow(1, 2, 3).narrow(2, 3, 4).narrow(3, 4, 5)));
  });
}

TEST_CASE("strides, threads and the shape of the batch's front change nothing") {
  for_each_filler([&](const Filler& filler, at::ScalarType type) {
    at::Tensor whole = filled(filler, type, {6, 10, 20});
    at::Tensor transposed = at::empty({20, 10, 6}, type).permute({2, 1, 0});
    filler.fill(transposed, {7, Region::whole({6, 10, 20})});
    CHECK(at::equal(transposed, whole));
    at::Tensor gaps = at::zeros({6, 10, 40}, type).slice(2, 0, 40, 2);
    filler.fill(gaps, {7, Region::whole({6, 10, 20})});
    CHECK(at::equal(gaps, whole));
    CHECK(at::equal(filled(filler, type, {1200}).view({6, 10, 20}), whole));
    CHECK(at::equal(filled(filler, type, {3, 10, 20}, 7, 600), whole.slice(0, 3)));
    CHECK(filled(filler, type, {}).dim() == 0);
    CHECK(filled(filler, type, {3, 0, 2}).numel() == 0);
    CHECK(!at::equal(filled(filler, type, {6, 10, 20}, 8), whole));
    int threads = at::get_num_threads();
    at::set_num_threads(2);
    at::Tensor two = filled(filler, type, {70000});
    at::set_num_threads(1);
    at::Tensor one = filled(filler, type, {70000});
    at::set_num_threads(threads);
    CHECK(at::equal(one, two));
  });
}

TEST_CASE("tensor operators, as on a GPU, give the same numbers") {
  for_each_filler([&](const Filler& filler, at::ScalarType type) {
    Region region = Region::whole({100, 50, 7});
    region.starts = {50, 2, 3};
    at::Tensor a = at::empty({20, 40, 3}, type), b = at::empty({20, 40, 3}, type);
    filler.fill(a, {99, region, 12345});
    filler.by_operators(b, {99, region, 12345});
    if (std::string(filler.name) == "normal")
      CHECK(at::allclose(a.to(at::kDouble), b.to(at::kDouble),
                         type == at::kDouble  ? 1e-12
                         : type == at::kFloat ? 2e-5
                                              : 1e-2,
                         1e-5));
    else if (std::string(filler.name) == "uniform")
      CHECK(at::allclose(a.to(at::kDouble), b.to(at::kDouble), 1e-6,
                         1e-2 * (type == at::kHalf || type == at::kBFloat16)));
    else
      CHECK(at::equal(a, b));
  });
}

TEST_CASE("a region must hold the local tensor") {
  for_each_filler([&](const Filler& filler, at::ScalarType type) {
    Region outside = Region::whole({4});
    outside.starts = {1};
    CHECK_THROWS(filler.fill(at::empty({4}, type), {7, outside}));
    CHECK_THROWS(filler.fill(at::empty({4}, type), {7, Region::whole({4, 1})}));
  });
}

// The largest difference of the empirical distribution of `x` from `cdf`, times sqrt(n): above
// 1.95 with probability 0.001 (Kolmogorov).
double kolmogorov_smirnov(const at::Tensor& x, const std::function<at::Tensor(at::Tensor)>& cdf) {
  at::Tensor sorted = std::get<0>(x.flatten().to(at::kDouble).sort());
  int64_t n = sorted.numel();
  at::Tensor expected = cdf(sorted), steps = at::arange(n, at::kDouble) / double(n);
  double above = (steps + 1.0 / double(n) - expected).max().item<double>();
  double below = (expected - steps).max().item<double>();
  return std::max(above, below) * std::sqrt(double(n));
}

TEST_CASE("the numbers have the distributions they are named after") {
  constexpr int64_t n = 1000000;
  for (at::ScalarType type : {at::kFloat, at::kDouble}) {
    CAPTURE(type);
    at::Tensor x = at::empty({n}, type);
    fill_uniform(x, {1, Region::whole({n})}, 0, 1);
    CHECK(x.min().item<double>() >= 0);
    CHECK(x.max().item<double>() < 1);
    CHECK(kolmogorov_smirnov(x, [](at::Tensor t) { return t; }) < 1.95);
    fill_normal(x, {2, Region::whole({n})}, 0, 1);
    CHECK(kolmogorov_smirnov(x, [](at::Tensor t) { return at::special_ndtr(t); }) < 1.95);
    CHECK(std::abs(x.mean().item<double>()) < 4e-3);
    CHECK(std::abs(x.var().item<double>() - 1) < 6e-3);
    CHECK(std::abs(x.pow(4).mean().item<double>() - 3) < 0.05);
    CHECK(x.abs().max().item<double>() > 4.2);
    // Neighbours know nothing of each other.
    CHECK(std::abs((x.slice(0, 1) * x.slice(0, 0, n - 1)).mean().item<double>()) < 4e-3);
  }
  at::Tensor half = at::empty({n}, at::kHalf);
  fill_uniform(half, {3, Region::whole({n})}, 0, 1);
  CHECK(half.max().item<double>() < 1);
  CHECK(std::abs(half.to(at::kDouble).mean().item<double>() - 0.5 + 1.0 / 4096) < 2e-3);
  fill_normal(half, {3, Region::whole({n})}, 0, 1);
  CHECK(std::abs(half.to(at::kDouble).var().item<double>() - 1) < 6e-3);
  for (double p : {0.0, 0.1, 0.75, 1.0}) {
    at::Tensor x = at::empty({n});
    fill_bernoulli(x, {4, Region::whole({n})}, p);
    CHECK(std::abs(x.mean().item<double>() - p) <= 4 * std::sqrt(p * (1 - p) / double(n)));
  }
  at::Tensor dice = at::empty({n}, at::kLong);
  fill_integers(dice, {5, Region::whole({n})}, 1, 6);
  at::Tensor counts = at::bincount(dice, {}, 7).slice(0, 1).to(at::kDouble);
  double expected = double(n) / 6;
  CHECK(((counts - expected).square() / expected).sum().item<double>() <
        20.5);  // 0.1 % of chi^2(5)
}

TEST_CASE("normal numbers are the inverse of their quantile to float32's precision") {
  at::Tensor x = at::empty({1 << 20}), y = at::empty({1 << 20});
  fill_normal(x, {6, Region::whole(x.sizes())}, 0, 1);
  by_operators::fill_normal(y, {6, Region::whole(x.sizes())}, 0, 1);
  CHECK((x - y).abs().max().item<double>() < 1e-5);
}

}  // namespace
