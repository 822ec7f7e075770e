// Converts random words to floats. Compiled with special options: loops with square roots are
// vectorised only if nobody reads errno or traps floating-point exceptions.

#include "floats.h"

#include "../vectorize.h"

#include <bit>
#include <cmath>
#include <initializer_list>

namespace redco::random {

namespace {

// The natural logarithm of a normal positive number, as in fdlibm's logf.
inline float log_of(float x) {
  constexpr int32_t sqrt_half = 0x3F3504F3;
  int32_t bits = std::bit_cast<int32_t>(x) - sqrt_half;
  auto exponent = float(bits >> 23);
  float f = std::bit_cast<float>((bits & 0x7FFFFF) + sqrt_half) - 1;
  float s = f / (2 + f), z = s * s, w = z * z, half = 0.5F * f * f;
  float r = z * (0.66666662693F + w * 0.28498786688F) + w * (0.40000972152F + w * 0.24279078841F);
  return s * (half + r) + exponent * 9.0580006145e-06F - half + f + exponent * 6.9313812256e-01F;
}

}  // namespace

REDCO_VECTORIZE
void uniform_floats(float* out, const uint32_t* words, int64_t n, float low, float width,
                    int digits) {
  auto step = float(two_to(-digits));
  for (int64_t i = 0; i < n; ++i)
    out[i] = low + float(int32_t(words[i] >> (32 - digits))) * step * width;
}

REDCO_VECTORIZE
void dropout_floats(float* out, float* factors, const float* x, const uint32_t* words, int64_t n,
                    uint32_t last, float scale) {
  for (int64_t i = 0; i < n; ++i) {
    factors[i] = words[i] <= last ? scale : 0;
    out[i] = x[i] * factors[i];
  }
}

REDCO_VECTORIZE
void dropout_bfloat16s(uint16_t* out, uint16_t* factors, const uint16_t* x, const uint32_t* words,
                       int64_t n, uint32_t last, uint16_t scale) {
  auto wide = [](uint32_t bits) { return std::bit_cast<float>(bits << 16); };
  for (int64_t i = 0; i < n; ++i) {
    uint32_t factor = words[i] <= last ? scale : 0;
    float y = wide(x[i]) * wide(factor);
    auto bits = std::bit_cast<uint32_t>(y);
    uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;  // ties to even
    factors[i] = uint16_t(factor);
    out[i] = uint16_t(y == y ? rounded : 0x7FC0);
  }
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
    v = std::sqrt(w > 0 ? w : 0) - 3;
    float tail = -0.000200214257F;
    for (float c : {0.000100950558F, 0.00134934322F, -0.00367342844F, 0.00573950773F,
                    -0.0076224613F, 0.00943887047F, 1.00167406F, 2.83297682F})
      tail = c + tail * v;
    float magnitude = float(M_SQRT2) * (w < 5 ? center : tail) * x;
    float sign = 1 - 2 * float(int32_t(words[i] >> 31));
    out[i] = mean + std * (sign * magnitude);
  }
}

}  // namespace redco::random
