// Scales of groups of numbers, fitted by weighted least squares: they have the least sum of
// w (x - x')^2 over the elements of a group, where x' is the decoded number.

#pragma once

#include "formats.h"

#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace redco::quantized {

// Rounds to the nearest integer, ties to even; |x| < 2^22.
REDCO_INLINE float rounded(float x) {
  constexpr float large = 12582912;  // 1.5 * 2^23
  return (x + large) - large;
}

REDCO_INLINE float as_half(float x) { return float(c10::Half(x)); }

REDCO_INLINE float inverse(float scale) { return scale == 0 ? 0 : 1 / scale; }

// The element of the largest magnitude, with its sign.
REDCO_INLINE float extreme(const float* x, int n) {
  float found = x[0];
  for (int i = 1; i < n; ++i)
    if (std::abs(x[i]) > std::abs(found)) found = x[i];
  return found;
}

// The integers low to high.
template <int low_, int high_>
struct Integers {
  static constexpr float low = low_, high = high_, step = 0.1f;  // of the factors that are tried
  static REDCO_INLINE float nearest(float x) { return rounded(std::clamp(x, low, high)); }
  static REDCO_INLINE int number(float value) { return int(value) - low_; }
};

// Sixteen values in ascending order.
template <const std::array<float, 16>& values>
struct Values {
  static constexpr float low = values.front(), high = values.back(), step = 1;
  static REDCO_INLINE float nearest(float x) {
    float found = low;
    for (size_t i = 1; i < values.size(); ++i)
      found = x > (values[i - 1] + values[i]) / 2 ? values[i] : found;
    return found;
  }
  static REDCO_INLINE int number(float value) {
    return int(std::ranges::lower_bound(values, value) - values.begin());
  }
};

template <class Code, int n>
REDCO_INLINE float error_of_scale(const float* x, const float* w, float scale) {
  const float factor = inverse(scale);
  float error = 0;
  for (int i = 0; i < n; ++i) {
    const float difference = x[i] - scale * Code::nearest(x[i] * factor);
    error += w[i] * difference * difference;
  }
  return error;
}

// Returns the scale with which x ~ scale q, q of Code, with the sign that fits better.
template <class Code, int n>
REDCO_INLINE float fit_scale(const float* x, const float* w) {
  const float largest = extreme(x, n);
  if (largest == 0) return 0;
  // With the best scale for the q of a factor, the error is sum w x^2 - (sum w x q)^2 / (sum w
  // q^2).
  float best = largest / Code::low, gain = -1;
  const auto attempt = [&](float factor) __attribute__((always_inline)) {
    float wxq = 0, wqq = 0;
    for (int i = 0; i < n; ++i) {
      const float q = Code::nearest(x[i] * factor);
      wxq += w[i] * x[i] * q;
      wqq += w[i] * q * q;
    }
    if (!(wqq > 0) || !(wxq * wxq > gain * wqq)) return false;
    gain = wxq * wxq / wqq;
    best = wxq / wqq;
    return true;
  };
  constexpr int n_steps = 9;
  for (const float end : {Code::low, Code::high})
    for (int step = -n_steps; step <= n_steps; ++step)
      attempt((end + float(step) * Code::step) / largest);
  for (int i = 0; i < 4 && attempt(1 / best); ++i) {
  }
  return best;
}

// x ~ scale q - least, q from 0 to `most`; neither is negative.
struct Line {
  float scale = 0, least = 0;
};

template <int most, int n>
REDCO_INLINE float error_of_line(const float* x, const float* w, Line line) {
  const float factor = inverse(line.scale);
  float error = 0;
  for (int i = 0; i < n; ++i) {
    const float q = Integers<0, most>::nearest((x[i] + line.least) * factor);
    const float difference = line.scale * q - line.least - x[i];
    error += w[i] * difference * difference;
  }
  return error;
}

template <int most, int n>
REDCO_INLINE Line fit_line(const float* x, const float* w) {
  float low = 0, high = x[0];
  for (int i = 0; i < n; ++i) {
    low = std::min(low, x[i]);
    high = std::max(high, x[i]);
  }
  if (high <= low) return {0, -low};
  Line best{(high - low) / float(most), -low};
  float gain = -std::numeric_limits<float>::infinity(), sum_w = 0, sum_wx = 0;
  for (int i = 0; i < n; ++i) {
    sum_w += w[i];
    sum_wx += w[i] * x[i];
  }
  // Fits a line to the numbers q that another line gives. The error of the fitted line is sum w x^2
  // - scale sum w q x + least sum w x.
  const auto attempt = [&](Line line) __attribute__((always_inline)) {
    const float factor = 1 / line.scale;
    float wq = 0, wqq = 0, wqx = 0;
    for (int i = 0; i < n; ++i) {
      const float q = Integers<0, most>::nearest((x[i] + line.least) * factor);
      wq += w[i] * q;
      wqq += w[i] * q * q;
      wqx += w[i] * q * x[i];
    }
    const float determinant = sum_w * wqq - wq * wq;
    // If all numbers are the same, the determinant consists of rounding errors.
    if (!(determinant > 1e-4f * sum_w * wqq)) return false;
    Line fitted{(sum_w * wqx - wq * sum_wx) / determinant, (wq * wqx - wqq * sum_wx) / determinant};
    if (fitted.least < 0) fitted = {wqx / wqq, 0};
    const float own_gain = fitted.scale * wqx - fitted.least * sum_wx;
    if (!(fitted.scale > 0 && own_gain > gain)) return false;
    gain = own_gain;
    best = fitted;
    return true;
  };
  constexpr int n_steps = 18;
  for (int step = -n_steps; step <= n_steps; ++step)
    attempt({(high - low) / (float(most) + 0.05f * float(step)), -low});
  for (int i = 0; i < 4 && attempt(best); ++i) {
  }
  return best;
}

}  // namespace redco::quantized
