// The kernels for GPUs, compiled for the CPU: they must give the CPU's numbers.
#include "../../engine/kernels/random/fill.h"
#include "../../engine/kernels/random/places.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>

#include "cuda_on_cpu.h"

using namespace redco::random;

namespace {

#include "../../engine/kernels/random/fill.cu"

// Runs a kernel on `out`, contiguous, for the region of a stream.
template <class T, class Kernel, class... Numbers>
void run(Kernel kernel, at::Tensor out, const Stream& stream, Numbers... numbers) {
  Places places(out.sizes(), stream);
  Words words{stream.key, places.first(), places.run_length(), int(places.n_outer()), {}, {}};
  for (size_t d = 0; d < places.n_outer(); ++d) {
    words.sizes.of[d] = out.size(int64_t(d));
    words.strides.of[d] = places.stride(d);
  }
  int64_t n = out.numel();
  blockDim.x = 32;
  for (blockIdx.x = 0; int64_t(blockIdx.x) * blockDim.x * n_each < n; ++blockIdx.x)
    for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x)
      kernel(static_cast<T*>(out.mutable_data_ptr()), n, words, numbers...);
}

// Compares with the CPU on whole tensors and on parts, from an odd place of a batch, with runs of
// whole blocks, and where no block can be stored at once.
template <class T, class Fill, class Kernel, class... Numbers>
void check(at::ScalarType type, Fill fill, Kernel kernel, Numbers... numbers) {
  Region part = Region::whole({30, 11, 17});
  part.starts = {3, 4, 5};
  Region rows = Region::whole({30, 11, 17});
  rows.starts = {2, 0, 0};
  Region heads = Region::whole({3, 5, 4, 8});
  heads.starts = {0, 2, 0, 0};
  for (const auto& [sizes, stream] :
       {std::pair{std::vector<int64_t>{30, 11, 17}, Stream{9, Region::whole({30, 11, 17})}},
        std::pair{std::vector<int64_t>{20, 5, 7}, Stream{9, part, (int64_t{1} << 33) + 1}},
        std::pair{std::vector<int64_t>{4, 11, 17}, Stream{~uint64_t(3), rows, 6}},
        std::pair{std::vector<int64_t>{3, 2, 4, 8}, Stream{5, heads, 32}}}) {
    at::Tensor expected = at::empty(sizes, type);
    fill(expected, stream);
    for (int64_t offset : {0, 1}) {
      at::Tensor actual = at::empty({offset + expected.numel()}, type);
      actual = actual.narrow(0, offset, expected.numel()).view(sizes);
      run<T>(kernel, actual, stream, numbers...);
      CHECK(at::equal(actual, expected));
    }
  }
}

}  // namespace

TEST_CASE("kernels give the CPU's numbers, to the last bit") {
  for (auto [type, digits] :
       {std::pair{at::kFloat, 24}, std::pair{at::kBFloat16, 8}, std::pair{at::kHalf, 11}})
    check<float>(
        at::kFloat,
        [type = type](at::Tensor out, const Stream& stream) {
          at::Tensor narrow = at::empty(out.sizes(), type);
          fill_uniform(narrow, stream, 0, 1);
          out.copy_(narrow);
        },
        uniform_float, 0.0F, 1.0F, digits);
  check<float>(
      at::kFloat,
      [](at::Tensor out, const Stream& stream) { fill_uniform(out, stream, -0.3, 0.7); },
      uniform_float, float(-0.3), float(0.7 + 0.3), 24);
  check<double>(
      at::kDouble,
      [](at::Tensor out, const Stream& stream) { fill_uniform(out, stream, -0.3, 0.7); },
      uniform_double, -0.3, 0.7 + 0.3);
  check<double>(at::kDouble, fill_open_uniform, open_uniform);
  check<float>(
      at::kFloat, [](at::Tensor out, const Stream& stream) { fill_normal(out, stream, 0.5, 2); },
      normal_float, 0.5F, 2.0F);
  for (uint32_t last : {0U, 1288490188U, ~0U})
    check<bool>(
        at::kBool,
        [last](at::Tensor out, const Stream& stream) {
          fill_bernoulli(out, stream, (double(last) + 1) / 4294967296.0);
        },
        bernoulli, last);
  for (uint64_t range : {uint64_t(1), uint64_t(100), (uint64_t(1) << 31) - 1})
    check<i64>(
        at::kLong,
        [range](at::Tensor out, const Stream& stream) { fill_integers(out, stream, -3, range); },
        short_integers, i64(-3), u64(range));
  for (uint64_t range : {uint64_t(0), uint64_t(1) << 31, uint64_t(1) << 40})
    check<i64>(
        at::kLong,
        [range](at::Tensor out, const Stream& stream) { fill_integers(out, stream, 7, range); },
        integers, i64(7), u64(range));
}

template <class Type, class Kernel>
void check_dropout(at::ScalarType type, Kernel kernel) {
  using T = typename Type::Stored;
  at::manual_seed(1);
  at::Tensor x = at::randn({6160}).to(type);
  const float scale = at::full({}, float(1 / 0.7), type).to(at::kFloat).item<float>();
  constexpr uint32_t last = 3006477107;  // 0.7 of all words
  for (int64_t offset : {0, 1}) {
    CAPTURE(offset);
    auto fill = [&](at::Tensor out, const Stream& stream) {
      at::Tensor from = x.narrow(0, offset, out.numel()).view(out.sizes());
      fill_dropout(out, {}, from, stream, 0.3);
    };
    auto of_part = [&](T* out, i64 n, const Words& words) {
      kernel(out, n, words, static_cast<const T*>(x.const_data_ptr()) + offset, last, scale);
    };
    check<T>(type, fill, of_part);
  }
}

TEST_CASE("the kernels of dropout give the CPU's numbers, to the last bit") {
  check_dropout<Float>(at::kFloat, dropout_float);
  check_dropout<BFloat16>(at::kBFloat16, dropout_bfloat16);
  check_dropout<Half>(at::kHalf, dropout_half);
}
