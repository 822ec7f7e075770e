// Fills tensors with random numbers.

#include "floats.h"
#include "places.h"
#include "words.h"

#include <redco/error.h>

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/native/Math.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

namespace redco::random {

namespace {

// The number of elements drawn at once, such that words and results stay in the L1 cache.
constexpr int64_t block_size = 1024;

// Whether an element takes two words.
template <class T>
constexpr bool is_wide = std::is_same_v<T, double>;

// Fills `out` on the CPU: transform(results, words, n) computes n results from n words, or from 2 n
// if `wide`.
template <class T, bool wide, class Transform>
void fill_on_cpu(at::Tensor& out, const Stream& stream, const Transform& transform) {
  Places places(out.sizes(), stream);
  at::Tensor dense = out.is_contiguous() ? out : at::empty(out.sizes(), out.options());
  T* data = dense.mutable_data_ptr<T>();
  at::parallel_for(0, out.numel(), 16 * block_size, [&](int64_t begin, int64_t end) {
    constexpr int n_words = wide ? 2 : 1;
    uint32_t drawn[n_words * block_size];
    while (begin < end) {
      int64_t offset = begin % places.run_length();
      int64_t n = std::min({end - begin, places.run_length() - offset, block_size});
      auto place = uint64_t(places.run(begin / places.run_length()) + offset);
      words(drawn, n_words * place, n_words * n, stream.key);
      transform(data + begin, drawn, n);
      begin += n;
    }
  });
  if (!dense.is_same(out)) out.copy_(dense);
}

// The `bits` highest of the 64 bits of element i.
inline uint64_t top_bits(const uint32_t* words, int64_t i, int bits) {
  return (words[2 * i] | uint64_t(words[2 * i + 1]) << 32) >> (64 - bits);
}

// A number in (0, 1).
inline double open_unit(const uint32_t* words, int64_t i) {
  return (double(top_bits(words, i, 52)) + 0.5) * two_to(-52);
}

// Computes results in float and rounds them to the 16-bit dtypes.
template <class T, class Transform>
void through_float(T* out, int64_t n, const Transform& transform) {
  if constexpr (std::is_same_v<T, float>) {
    transform(out);
  } else {
    float exact[block_size];
    transform(exact);
    for (int64_t i = 0; i < n; ++i) out[i] = T(exact[i]);
  }
}

// Computes n factors and their products with x.
void drop(float* to, float* factors, const float* x, const uint32_t* words, int64_t n,
          uint32_t last, float scale) {
  dropout_floats(to, factors, x, words, n, last, scale);
}

void drop(at::BFloat16* to, at::BFloat16* factors, const at::BFloat16* x, const uint32_t* words,
          int64_t n, uint32_t last, at::BFloat16 scale) {
  auto bits = [](auto* pointer) { return reinterpret_cast<uint16_t*>(pointer); };
  dropout_bfloat16s(bits(to), bits(factors), reinterpret_cast<const uint16_t*>(x), words, n, last,
                    scale.x);
}

void drop(double* to, double* factors, const double* x, const uint32_t* words, int64_t n,
          uint32_t last, double scale) {
  for (int64_t i = 0; i < n; ++i) {
    factors[i] = words[i] <= last ? scale : 0;
    to[i] = x[i] * factors[i];
  }
}

void dropout_on_cpu(at::Tensor& out, const at::Tensor& factors, const at::Tensor& x,
                    const Stream& stream, double p) {
  const uint32_t last = last_kept(p);
  AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, x.scalar_type(), "dropout", [&] {
    const auto scale = scalar_t(dropout_scale(p));
    const auto *from = x.const_data_ptr<scalar_t>(), *begin = out.const_data_ptr<scalar_t>();
    scalar_t* kept = factors.defined() ? factors.mutable_data_ptr<scalar_t>() : nullptr;
    fill_on_cpu<scalar_t, false>(out, stream, [=](scalar_t* to, const uint32_t* words, int64_t n) {
      scalar_t dropped[block_size];
      const int64_t offset = to - begin;
      drop(to, kept ? kept + offset : dropped, from + offset, words, n, last, scale);
    });
  });
}

}  // namespace

void fill_uniform(at::Tensor out, const Stream& stream, double low, double high) {
  if (!out.is_cpu()) return on_device::fill_uniform(out, stream, low, high);
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, out.scalar_type(), "random numbers", [&] {
        constexpr int digits = std::numeric_limits<scalar_t>::digits;
        constexpr bool wide = is_wide<scalar_t>;
        fill_on_cpu<scalar_t, wide>(
            out, stream, [=](scalar_t* to, const uint32_t* words, int64_t n) {
              if constexpr (wide) {
                for (int64_t i = 0; i < n; ++i)
                  to[i] = low + double(top_bits(words, i, digits)) * two_to(-digits) * (high - low);
              } else {
                through_float(to, n, [&](float* exact) {
                  uniform_floats(exact, words, n, float(low), float(high - low), digits);
                });
              }
            });
      });
}

void fill_open_uniform(at::Tensor out, const Stream& stream) {
  if (!out.is_cpu()) return on_device::fill_open_uniform(out, stream);
  fill_on_cpu<double, true>(out, stream, [](double* to, const uint32_t* words, int64_t n) {
    for (int64_t i = 0; i < n; ++i) to[i] = open_unit(words, i);
  });
}

void fill_normal(at::Tensor out, const Stream& stream, double mean, double std) {
  if (!out.is_cpu()) return on_device::fill_normal(out, stream, mean, std);
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, out.scalar_type(), "random numbers", [&] {
        constexpr bool wide = is_wide<scalar_t>;
        fill_on_cpu<scalar_t, wide>(out, stream,
                                    [=](scalar_t* to, const uint32_t* words, int64_t n) {
                                      if constexpr (wide) {
                                        for (int64_t i = 0; i < n; ++i)
                                          to[i] = mean + std * calc_ndtri(open_unit(words, i));
                                      } else {
                                        through_float(to, n, [&](float* exact) {
                                          normal_floats(exact, words, n, float(mean), float(std));
                                        });
                                      }
                                    });
      });
}

void fill_bernoulli(at::Tensor out, const Stream& stream, double p) {
  int64_t bound = bernoulli_bound(p);
  if (!out.is_cpu()) return on_device::fill_bernoulli(out, stream, p);
  if (bound == 0) {
    out.zero_();
    return;
  }
  auto last = uint32_t(bound - 1);
  AT_DISPATCH_ALL_TYPES_AND3(
      at::kHalf, at::kBFloat16, at::kBool, out.scalar_type(), "random numbers", [&] {
        fill_on_cpu<scalar_t, false>(out, stream,
                                     [last](scalar_t* to, const uint32_t* words, int64_t n) {
                                       for (int64_t i = 0; i < n; ++i)
                                         to[i] = static_cast<scalar_t>(words[i] <= last);
                                     });
      });
}

void fill_dropout(at::Tensor out, at::Tensor factors, const at::Tensor& x, const Stream& stream,
                  double p) {
  const bool is_dense = x.is_contiguous() && out.is_contiguous();
  if (is_dense && out.is_cpu() && x.scalar_type() != at::kHalf)
    return dropout_on_cpu(out, factors, x, stream, p);
  if (is_dense && !out.is_cpu() && !factors.defined() && on_device::fill_dropout(out, x, stream, p))
    return;
  at::Tensor kept = factors.defined() ? factors : at::empty_like(x);
  fill_bernoulli(kept, stream, 1 - p);
  at::mul_out(out, x, kept.mul_(dropout_scale(p)));
}

void fill_integers(at::Tensor out, const Stream& stream, int64_t base, uint64_t range) {
  require(range <= uint64_t(std::numeric_limits<int64_t>::max()), "random numbers: a range of ",
          range, " integers is too large; it must be below 2^63");
  if (!out.is_cpu()) return on_device::fill_integers(out, stream, base, range);
  AT_DISPATCH_ALL_TYPES_AND2(at::kHalf, at::kBFloat16, out.scalar_type(), "random numbers", [&] {
    auto fill_with = [&](const auto& number) {
      fill_on_cpu<scalar_t, true>(out, stream, [&](scalar_t* to, const uint32_t* words, int64_t n) {
        for (int64_t i = 0; i < n; ++i)
          to[i] = static_cast<scalar_t>(int64_t(uint64_t(base) + number(words, i)));
      });
    };
    if (range == 0)
      fill_with([](const uint32_t* words, int64_t i) { return top_bits(words, i, 64); });
    else if (is_short(range))
      fill_with([range](const uint32_t* words, int64_t i) {
        return (words[2 * i + 1] * range + (words[2 * i] * range >> 32)) >> 32;
      });
    else
      fill_with(
          [range](const uint32_t* words, int64_t i) { return top_bits(words, i, 63) % range; });
  });
}

}  // namespace redco::random
