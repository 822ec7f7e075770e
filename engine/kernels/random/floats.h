#pragma once

#include <cstdint>

namespace redco::random {

constexpr double two_to(int exponent) {
  double result = 1;
  for (; exponent < 0; ++exponent) result /= 2;
  for (; exponent > 0; --exponent) result *= 2;
  return result;
}

/// Computes n numbers low + u * width from n words: u, in [0, 1), is the `digits` highest bits.
void uniform_floats(float* out, const uint32_t* words, int64_t n, float low, float width,
                    int digits);

/// Computes n factors, `scale` where the word is at most `last`, else 0, and their products with x.
/// The second is for bfloat16.
void dropout_floats(float* out, float* factors, const float* x, const uint32_t* words, int64_t n,
                    uint32_t last, float scale);
void dropout_bfloat16s(uint16_t* out, uint16_t* factors, const uint16_t* x, const uint32_t* words,
                       int64_t n, uint32_t last, uint16_t scale);

/// Computes n normal numbers from n words. Bit 31 is the sign; the 24 bits below it, plus a half,
/// select the quantile in (0, 1/2), in steps of `quantile_step`.
void normal_floats(float* out, const uint32_t* words, int64_t n, float mean, float std);
constexpr int quantile_bits = 24;
constexpr double quantile_step = two_to(-quantile_bits - 1);

}  // namespace redco::random
