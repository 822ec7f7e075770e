#include "places.h"
#include "vectorize.h"
#include "words.h"

#include <redco/error.h>

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/native/Math.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

namespace redco {

namespace {

// How many elements are drawn at once: words and results stay in the first-level cache.
constexpr int64_t block_size = 1024;

// Elements that take two words.
template <class T>
constexpr bool is_wide = std::is_same_v<T, double>;

// Fills `out` on the CPU: transform(results, words, n) makes n results from n words, or from 2 n
// where `wide`.
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

// The `bits` highest bits of element i's 64.
inline uint64_t top_bits(const uint32_t* words, int64_t i, int bits) {
  return (words[2 * i] | uint64_t(words[2 * i + 1]) << 32) >> (64 - bits);
}

// A number in (0, 1).
inline double open_unit(const uint32_t* words, int64_t i) {
  return (double(top_bits(words, i, 52)) + 0.5) * two_to(-52);
}

REDCO_VECTORIZE
void uniform_floats(float* out, const uint32_t* words, int64_t n, float low, float width,
                    int digits) {
  auto step = float(two_to(-digits));
  for (int64_t i = 0; i < n; ++i)
    out[i] = low + float(int32_t(words[i] >> (32 - digits))) * step * width;
}

// The natural logarithm of a normal, positive number, as in fdlibm's logf.
inline float log_of(float x) {
  constexpr int32_t sqrt_half = 0x3F3504F3;
  int32_t bits = std::bit_cast<int32_t>(x) - sqrt_half;
  auto exponent = float(bits >> 23);
  float f = std::bit_cast<float>((bits & 0x7FFFFF) + sqrt_half) - 1;
  float s = f / (2 + f), z = s * s, w = z * z, half = 0.5F * f * f;
  float r = z * (0.66666662693F + w * 0.28498786688F) + w * (0.40000972152F + w * 0.24279078841F);
  return s * (half + r) + exponent * 9.0580006145e-06F - half + f + exponent * 6.9313812256e-01F;
}

REDCO_VECTORIZE
void normal_floats(float* out, const uint32_t* words, int64_t n, float mean, float std) {
  for (int64_t i = 0; i < n; ++i) {
    uint32_t bits = words[i] << 1 >> (32 - quantile_bits);
    float p = (float(int32_t(bits)) + 0.5F) * float(quantile_step);
    float x = 1 - 2 * p;
    float w = -log_of(4 * p * (1 - p));
    float v = w - 2.5F;
    float center = 2.81022636e-08F;
    for (float c : {3.43273939e-07F, -3.5233877e-06F, -4.39150654e-06F, 0.00021858087F,
                    -0.00125372503F, -0.00417768164F, 0.246640727F, 1.50140941F})
      center = c + center * v;
    v = std::sqrt(std::max(w, 0.0F)) - 3;
    float tail = -0.000200214257F;
    for (float c : {0.000100950558F, 0.00134934322F, -0.00367342844F, 0.00573950773F,
                    -0.0076224613F, 0.00943887047F, 1.00167406F, 2.83297682F})
      tail = c + tail * v;
    float magnitude = float(M_SQRT2) * (w < 5 ? center : tail) * x;
    float sign = 1 - 2 * float(int32_t(words[i] >> 31));
    out[i] = mean + std * (sign * magnitude);
  }
}

// Results made as float are rounded to the 16-bit types.
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

}  // namespace

void fill_uniform(at::Tensor out, const Stream& stream, double low, double high) {
  if (!out.is_cpu()) return by_operators::fill_uniform(out, stream, low, high);
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
  if (!out.is_cpu()) return by_operators::fill_open_uniform(out, stream);
  fill_on_cpu<double, true>(out, stream, [](double* to, const uint32_t* words, int64_t n) {
    for (int64_t i = 0; i < n; ++i) to[i] = open_unit(words, i);
  });
}

void fill_normal(at::Tensor out, const Stream& stream, double mean, double std) {
  if (!out.is_cpu()) return by_operators::fill_normal(out, stream, mean, std);
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
  if (!out.is_cpu()) return by_operators::fill_bernoulli(out, stream, p);
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

void fill_integers(at::Tensor out, const Stream& stream, int64_t base, uint64_t range) {
  require(range <= uint64_t(std::numeric_limits<int64_t>::max()), "random numbers: a range of ",
          range, " integers is too large; it must be below 2^63");
  if (!out.is_cpu()) return by_operators::fill_integers(out, stream, base, range);
  AT_DISPATCH_ALL_TYPES_AND2(at::kHalf, at::kBFloat16, out.scalar_type(), "random numbers", [&] {
    fill_on_cpu<scalar_t, true>(out, stream, [=](scalar_t* to, const uint32_t* words, int64_t n) {
      for (int64_t i = 0; i < n; ++i) {
        uint64_t number =
            range == 0 ? top_bits(words, i, 64) : uint64_t(base) + top_bits(words, i, 63) % range;
        to[i] = static_cast<scalar_t>(int64_t(number));
      }
    });
  });
}

}  // namespace redco
