// Encodes blocks of 256 elements in groups, whose scales are small integers with a common scale:
// q2_k to q6_k and iq4_xs. Scales of groups are fitted first, then rounded together with the common
// ones.

#pragma once

#include "encode.h"
#include "fit.h"

namespace redco::quantized {

constexpr int block_size = 256;

// x ~ scale s q, a scale s for each group.
template <class Code, int n_groups, int low, int high>
struct Symmetric {
  static constexpr int n = block_size / n_groups;
  float scale = 0;
  std::array<float, n_groups> s{};
  std::array<int, block_size> numbers{};

  REDCO_INLINE Symmetric(const float* x, const float* w) {
    std::array<float, n_groups> fitted;
    for (int group = 0; group < n_groups; ++group)
      fitted[size_t(group)] = fit_scale<Code, n>(x + group * n, w + group * n);
    scale = as_half(extreme(fitted.data(), n_groups) / float(low));
    for (int round = 0; scale != 0 && round < 2; ++round) {
      float product = 0, square = 0;
      for (int group = 0; group < n_groups; ++group) {
        const float* own_x = x + group * n;
        const float* own_w = w + group * n;
        const float start = fitted[size_t(group)] / scale;
        float& found = s[size_t(group)];
        float least_error = std::numeric_limits<float>::infinity();
        for (int step = -1; step <= 1; ++step) {
          const float candidate = std::clamp(rounded(start) + float(step), float(low), float(high));
          const float error = error_of_scale<Code, n>(own_x, own_w, scale * candidate);
          if (!(error < least_error)) continue;
          least_error = error;
          found = candidate;
        }
        const float factor = inverse(scale * found);
        for (int i = 0; i < n; ++i) {
          const float value = found * Code::nearest(own_x[i] * factor);
          product += own_w[i] * own_x[i] * value;
          square += own_w[i] * value * value;
        }
      }
      if (round == 0 && square > 0 && as_half(product / square) != 0)
        scale = as_half(product / square);
    }
    for (int i = 0; i < block_size; ++i)
      numbers[size_t(i)] = Code::number(Code::nearest(x[i] * inverse(scale * s[size_t(i / n)])));
  }
};

// x ~ scale s q - least m, with s and m from 0 to `most_scale` for each group.
template <int most, int n_groups, int most_scale>
struct Affine {
  static constexpr int n = block_size / n_groups;
  float scale = 0, least = 0;
  std::array<float, n_groups> s{}, m{};
  std::array<int, block_size> numbers{};

  REDCO_INLINE Affine(const float* x, const float* w) {
    std::array<Line, n_groups> fitted;
    Line largest;
    for (int group = 0; group < n_groups; ++group) {
      fitted[size_t(group)] = fit_line<most, n>(x + group * n, w + group * n);
      largest.scale = std::max(largest.scale, fitted[size_t(group)].scale);
      largest.least = std::max(largest.least, fitted[size_t(group)].least);
    }
    scale = as_half(largest.scale / most_scale);
    least = as_half(largest.least / most_scale);
    for (int round = 0; round < 2; ++round) {
      // The sums of the normal equations of the common scales.
      float aa = 0, ab = 0, bb = 0, ax = 0, bx = 0;
      for (int group = 0; group < n_groups; ++group) {
        const float* own_x = x + group * n;
        const float* own_w = w + group * n;
        choose(own_x, own_w, fitted[size_t(group)], s[size_t(group)], m[size_t(group)]);
        const float a_scale = s[size_t(group)], b = -m[size_t(group)];
        const Line line = line_of(a_scale, -b);
        const float factor = inverse(line.scale);
        for (int i = 0; i < n; ++i) {
          const float a = a_scale * Integers<0, most>::nearest((own_x[i] + line.least) * factor);
          aa += own_w[i] * a * a;
          ab += own_w[i] * a * b;
          bb += own_w[i] * b * b;
          ax += own_w[i] * a * own_x[i];
          bx += own_w[i] * b * own_x[i];
        }
      }
      const float determinant = aa * bb - ab * ab;
      if (round > 0 || !(determinant > 0)) break;
      const float new_scale = as_half((ax * bb - bx * ab) / determinant);
      const float new_least = as_half((bx * aa - ax * ab) / determinant);
      if (!(new_scale > 0 && new_least > 0)) break;
      scale = new_scale;
      least = new_least;
    }
    for (int i = 0; i < block_size; ++i) {
      const Line line = line_of(s[size_t(i / n)], m[size_t(i / n)]);
      numbers[size_t(i)] =
          int(Integers<0, most>::nearest((x[i] + line.least) * inverse(line.scale)));
    }
  }

  REDCO_INLINE Line line_of(float own_s, float own_m) const {
    return {scale * own_s, least * own_m};
  }

  // Chooses the integers of a group among the neighbours of those that were fitted.
  REDCO_INLINE void choose(const float* x, const float* w, Line fitted, float& own_s,
                           float& own_m) const {
    const float start_s = rounded(fitted.scale * inverse(scale));
    const float start_m = rounded(fitted.least * inverse(least));
    float least_error = std::numeric_limits<float>::infinity();
    for (int step = 0; step < 9; ++step) {
      const float candidate_s = std::clamp(start_s + float(step % 3 - 1), 0.f, float(most_scale));
      const float candidate_m = std::clamp(start_m + float(step / 3 - 1), 0.f, float(most_scale));
      const float error = error_of_line<most, n>(x, w, line_of(candidate_s, candidate_m));
      if (!(error < least_error)) continue;
      least_error = error;
      own_s = candidate_s;
      own_m = candidate_m;
    }
  }
};

REDCO_INLINE void fit_q2_k(const float* x, const float* w, Byte* bytes) {
  const Affine<3, 16, 15> fit(x, w);
  put_half(bytes + 80, fit.scale);
  put_half(bytes + 82, fit.least);
  std::fill_n(bytes + 16, 64, Byte{0});
  for (int group = 0; group < 16; ++group) {
    bytes[group] = Byte(int(fit.s[size_t(group)]) | int(fit.m[size_t(group)]) << 4);
    Byte* q = bytes + 16 + group / 8 * 32 + group % 2 * 16;
    for (int i = 0; i < 16; ++i)
      q[i] |= Byte(fit.numbers[size_t(group * 16 + i)] << group % 8 / 2 * 2);
  }
}

REDCO_INLINE void fit_q3_k(const float* x, const float* w, Byte* bytes) {
  const Symmetric<Integers<-4, 3>, 16, -32, 31> fit(x, w);
  put_half(bytes + 108, fit.scale);
  std::fill_n(bytes, 108, Byte{0});
  for (int group = 0; group < 16; ++group) {
    const int s = int(fit.s[size_t(group)]) + 32;
    bytes[96 + group % 8] |= Byte((s & 15) << group / 8 * 4);
    bytes[104 + group % 4] |= Byte(s >> 4 << group / 4 * 2);
    Byte *q = bytes + 32 + group / 8 * 32 + group % 2 * 16, *bits = bytes + group % 2 * 16;
    for (int i = 0; i < 16; ++i) {
      const int number = fit.numbers[size_t(group * 16 + i)];
      q[i] |= Byte((number & 3) << group % 8 / 2 * 2);
      bits[i] |= Byte(number >> 2 << group / 2);
    }
  }
}

// The scales and leasts of 8 groups, of 6 bits: the inverse of scale_of_8 and least_of_8.
template <class Fit>
REDCO_INLINE void put_scales_of_8(const Fit& fit, Byte* packed) {
  for (size_t i = 0; i < 4; ++i) {
    const int s = int(fit.s[i]), m = int(fit.m[i]);
    const int upper_s = int(fit.s[i + 4]), upper_m = int(fit.m[i + 4]);
    packed[i] = Byte(s | upper_s >> 4 << 6);
    packed[i + 4] = Byte(m | upper_m >> 4 << 6);
    packed[i + 8] = Byte((upper_s & 15) | (upper_m & 15) << 4);
  }
}

REDCO_INLINE void fit_q4_k(const float* x, const float* w, Byte* bytes) {
  const Affine<15, 8, 63> fit(x, w);
  put_half(bytes, fit.scale);
  put_half(bytes + 2, fit.least);
  put_scales_of_8(fit, bytes + 4);
  for (int pair = 0; pair < 4; ++pair)
    for (int i = 0; i < 32; ++i)
      bytes[16 + pair * 32 + i] =
          Byte(fit.numbers[size_t(pair * 64 + i)] | fit.numbers[size_t(pair * 64 + 32 + i)] << 4);
}

REDCO_INLINE void fit_q5_k(const float* x, const float* w, Byte* bytes) {
  const Affine<31, 8, 63> fit(x, w);
  put_half(bytes, fit.scale);
  put_half(bytes + 2, fit.least);
  put_scales_of_8(fit, bytes + 4);
  std::fill_n(bytes + 16, 160, Byte{0});
  for (int group = 0; group < 8; ++group)
    for (int i = 0; i < 32; ++i) {
      const int number = fit.numbers[size_t(group * 32 + i)];
      bytes[48 + group / 2 * 32 + i] |= Byte((number & 15) << group % 2 * 4);
      bytes[16 + i] |= Byte(number >> 4 << group);
    }
}

REDCO_INLINE void fit_q6_k(const float* x, const float* w, Byte* bytes) {
  const Symmetric<Integers<-32, 31>, 16, -128, 127> fit(x, w);
  put_half(bytes + 208, fit.scale);
  std::fill_n(bytes, 192, Byte{0});
  for (int group = 0; group < 16; ++group) {
    bytes[192 + group] = Byte(int8_t(fit.s[size_t(group)]));
    const int half = group / 8, part = group % 8 / 2, begin = group % 2 * 16;
    Byte* q = bytes + half * 64 + part % 2 * 32 + begin;
    Byte* upper = bytes + 128 + half * 32 + begin;
    for (int i = 0; i < 16; ++i) {
      const int number = fit.numbers[size_t(group * 16 + i)];
      q[i] |= Byte((number & 15) << (part < 2 ? 0 : 4));
      upper[i] |= Byte(number >> 4 << part * 2);
    }
  }
}

REDCO_INLINE void fit_iq4_xs(const float* x, const float* w, Byte* bytes) {
  const Symmetric<Values<iq4_values>, 8, -32, 31> fit(x, w);
  put_half(bytes, fit.scale);
  std::fill_n(bytes + 2, 134, Byte{0});
  uint16_t upper = 0;
  for (int group = 0; group < 8; ++group) {
    const int s = int(fit.s[size_t(group)]) + 32;
    bytes[4 + group / 2] |= Byte((s & 15) << group % 2 * 4);
    upper = uint16_t(upper | s >> 4 << group * 2);
    for (int i = 0; i < 16; ++i)
      bytes[8 + group * 16 + i] =
          Byte(fit.numbers[size_t(group * 32 + i)] | fit.numbers[size_t(group * 32 + 16 + i)] << 4);
  }
  std::memcpy(bytes + 2, &upper, sizeof(upper));
}

}  // namespace redco::quantized
