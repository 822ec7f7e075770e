// Quantizes each element of a block to the nearest number, as `quantize_row_*_ref` of llama.cpp's
// ggml-quants.c and `quantize_4bit` of bitsandbytes do. An encoder writes the bytes of one block.

#pragma once

#include "fit.h"

#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace redco::quantized {

REDCO_INLINE void put_half(Byte* bytes, float value) {
  const uint16_t bits = c10::Half(value).x;
  std::memcpy(bytes, &bits, sizeof(bits));
}

// Truncates to an integer in [0, most]. Callers shift the value, so that truncation rounds it.
REDCO_INLINE unsigned truncated(float value, float most) {
  return value > 0 ? unsigned(std::min(value, most)) : 0;
}

template <int n>
REDCO_INLINE void pack_nibbles(const unsigned (&q)[n], Byte* bytes) {
  for (int i = 0; i < n / 2; ++i) bytes[i] = Byte((q[i] & 15) | (q[i + n / 2] & 15) << 4);
}

template <int n>
REDCO_INLINE void pack_fifth_bits(const unsigned (&q)[n], Byte* bytes) {
  uint32_t bits = 0;
  for (int i = 0; i < n; ++i) bits |= uint32_t{q[i] >> 4} << i;
  std::memcpy(bytes, &bits, sizeof(bits));
}

inline void encode_q8_0(const float* x, Byte* bytes) {
  const float scale = std::abs(extreme(x, 32)) / 127, factor = inverse(scale);
  put_half(bytes, scale);
  for (int i = 0; i < 32; ++i)
    bytes[2 + i] = Byte(int8_t(std::clamp(std::round(x[i] * factor), -127.f, 127.f)));
}

// The extreme becomes the least number, -(most + 1) / 2, whichever sign it has: the scale takes the
// sign.
template <int most>
REDCO_INLINE void quantize_signed(const float* x, Byte* scale_bytes, unsigned (&q)[32]) {
  constexpr float middle = float(most + 1) / 2;
  const float scale = extreme(x, 32) / -middle, factor = inverse(scale);
  put_half(scale_bytes, scale);
  for (int i = 0; i < 32; ++i) q[i] = truncated(x[i] * factor + (middle + 0.5f), float(most));
}

template <int most>
REDCO_INLINE void quantize_from_least(const float* x, Byte* scale_bytes, unsigned (&q)[32]) {
  const auto [least, largest] = std::minmax_element(x, x + 32);
  const float scale = (*largest - *least) / most, factor = inverse(scale);
  put_half(scale_bytes, scale);
  put_half(scale_bytes + 2, *least);
  for (int i = 0; i < 32; ++i) q[i] = truncated((x[i] - *least) * factor + 0.5f, float(most));
}

inline void encode_q4_0(const float* x, Byte* bytes) {
  unsigned q[32];
  quantize_signed<15>(x, bytes, q);
  pack_nibbles(q, bytes + 2);
}

inline void encode_q4_1(const float* x, Byte* bytes) {
  unsigned q[32];
  quantize_from_least<15>(x, bytes, q);
  pack_nibbles(q, bytes + 4);
}

inline void encode_q5_0(const float* x, Byte* bytes) {
  unsigned q[32];
  quantize_signed<31>(x, bytes, q);
  pack_fifth_bits(q, bytes + 2);
  pack_nibbles(q, bytes + 6);
}

inline void encode_q5_1(const float* x, Byte* bytes) {
  unsigned q[32];
  quantize_from_least<31>(x, bytes, q);
  pack_fifth_bits(q, bytes + 4);
  pack_nibbles(q, bytes + 8);
}

// Finds the best scale of 32 elements, writes the scale as a half and sets `q` to the numbers.
template <class Code>
REDCO_INLINE void fit_numbers(const float* x, const float* w, Byte* scale_bytes,
                              unsigned (&q)[32]) {
  const float scale = as_half(fit_scale<Code, 32>(x, w)), factor = inverse(scale);
  put_half(scale_bytes, scale);
  for (int i = 0; i < 32; ++i) q[i] = unsigned(Code::number(Code::nearest(x[i] * factor)));
}

template <int most>
REDCO_INLINE void fit_numbers_from_least(const float* x, const float* w, Byte* scale_bytes,
                                         unsigned (&q)[32]) {
  using Code = Integers<0, most>;
  Line line = fit_line<most, 32>(x, w);
  line = {as_half(line.scale), as_half(line.least)};
  put_half(scale_bytes, line.scale);
  put_half(scale_bytes + 2, -line.least);
  const float factor = inverse(line.scale);
  for (int i = 0; i < 32; ++i)
    q[i] = unsigned(Code::number(Code::nearest((x[i] + line.least) * factor)));
}

REDCO_INLINE void fit_q4_0(const float* x, const float* w, Byte* bytes) {
  unsigned q[32];
  fit_numbers<Integers<-8, 7>>(x, w, bytes, q);
  pack_nibbles(q, bytes + 2);
}

REDCO_INLINE void fit_q4_1(const float* x, const float* w, Byte* bytes) {
  unsigned q[32];
  fit_numbers_from_least<15>(x, w, bytes, q);
  pack_nibbles(q, bytes + 4);
}

REDCO_INLINE void fit_q5_0(const float* x, const float* w, Byte* bytes) {
  unsigned q[32];
  fit_numbers<Integers<-16, 15>>(x, w, bytes, q);
  pack_fifth_bits(q, bytes + 2);
  pack_nibbles(q, bytes + 6);
}

REDCO_INLINE void fit_q5_1(const float* x, const float* w, Byte* bytes) {
  unsigned q[32];
  fit_numbers_from_least<31>(x, w, bytes, q);
  pack_fifth_bits(q, bytes + 4);
  pack_nibbles(q, bytes + 8);
}

REDCO_INLINE void fit_iq4_nl(const float* x, const float* w, Byte* bytes) {
  unsigned q[32];
  fit_numbers<Values<iq4_values>>(x, w, bytes, q);
  pack_nibbles(q, bytes + 2);
}

inline constexpr std::array<float, 16> ascending_mxfp4_values = {-12, -8, -6, -4, -3, -2, -1, 0,
                                                                 0,   1,  2,  3,  4,  6,  8,  12};

// Scales are powers of two. Tries a scale with which no magnitude exceeds the largest number, and
// half of this scale.
REDCO_INLINE void fit_mxfp4(const float* x, const float* w, Byte* bytes) {
  using Code = Values<ascending_mxfp4_values>;
  int exponent = 0;
  std::frexp(std::abs(extreme(x, 32)) / 12, &exponent);
  const int most = std::clamp(exponent + 128, 1, 254);
  const float scale = std::ldexp(1.f, most - 128), half = scale / 2;
  const bool is_half = error_of_scale<Code, 32>(x, w, half) < error_of_scale<Code, 32>(x, w, scale);
  const float factor = 1 / (is_half ? half : scale);
  bytes[0] = Byte(most - int(is_half));
  unsigned q[32];
  for (int i = 0; i < 32; ++i) {
    const float value = Code::nearest(x[i] * factor);
    const int place = Code::number(value);
    q[i] = unsigned(value == 0 ? 0 : value < 0 ? 15 - place : place - 8);
  }
  pack_nibbles(q, bytes + 1);
}

inline void encode_int8(const float* x, Byte* bytes) {
  const float scale = std::abs(extreme(x, group_size)) / 127, factor = inverse(scale);
  std::memcpy(bytes, &scale, sizeof(scale));
  for (int i = 0; i < group_size; ++i)
    bytes[4 + i] = Byte(int8_t(std::clamp(std::round(x[i] * factor), -127.f, 127.f)));
}

// Spreads the numbers from the least to the largest element; 0 is one of the numbers.
inline void encode_int4(const float* x, Byte* bytes) {
  const auto [least, largest] = std::minmax_element(x, x + group_size);
  const float low = std::min(*least, 0.f), scale = (std::max(*largest, 0.f) - low) / 15;
  const float factor = inverse(scale), zero = std::clamp(std::round(-low * factor), 0.f, 15.f);
  std::memcpy(bytes, &scale, sizeof(scale));
  bytes[4] = Byte(zero);
  const auto number = [=](float value) {
    return Byte(std::clamp(std::round(value * factor) + zero, 0.f, 15.f));
  };
  for (int i = 0; i < group_size / 2; ++i)
    bytes[5 + i] = Byte(number(x[2 * i]) | number(x[2 * i + 1]) << 4);
}

// The largest magnitude becomes 448, the largest number.
inline void encode_fp8(const float* x, Byte* bytes) {
  const float scale = std::abs(extreme(x, group_size)) / 448, factor = inverse(scale);
  std::memcpy(bytes, &scale, sizeof(scale));
  for (int i = 0; i < group_size; ++i)
    bytes[4 + i] = c10::Float8_e4m3fn(std::clamp(x[i] * factor, -448.f, 448.f)).x;
}

// The numbers of a code in ascending order of their values, and the bounds between neighbours.
struct Bounds {
  std::array<Byte, 16> order;
  std::array<float, 15> between;

  explicit Bounds(const Code& values) {
    std::iota(order.begin(), order.end(), Byte{0});
    std::ranges::stable_sort(order, {}, [&](Byte q) { return values[q]; });
    for (size_t i = 0; i < between.size(); ++i)
      between[i] = (values[order[i]] + values[order[i + 1]]) / 2;
  }

  // A value on a bound rounds to the smaller number.
  int nearest(float value) const {
    return order[size_t(std::ranges::lower_bound(between, value) - between.begin())];
  }
};

template <const Code& values>
void encode_code4(const float* x, Byte* bytes) {
  static const Bounds bounds(values);
  const float scale = std::abs(extreme(x, group_size)), factor = 1 / std::max(scale, 1e-38f);
  std::memcpy(bytes, &scale, sizeof(scale));
  for (int i = 0; i < group_size / 2; ++i) {
    const int first = bounds.nearest(std::clamp(x[2 * i] * factor, -1.f, 1.f));
    const int second = bounds.nearest(std::clamp(x[2 * i + 1] * factor, -1.f, 1.f));
    bytes[4 + i] = Byte(first << 4 | second);
  }
}

}  // namespace redco::quantized
