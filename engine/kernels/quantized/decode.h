// Decodes blocks of quantized numbers. The formats are those of ggml-common.h of llama.cpp, and
// nf4 and fp4 those of bitsandbytes' functional.py with the scale in front of each block.
// int8, int4 and fp8 are the rows and groups of quantized folders: each block has a copy of its
// scale.
//
// A decoder is a struct with the sizes of its block and `decode(bytes, put)`, which calls
// put(i, value) once for every element i. Kernels take it as a template argument, so that the loop
// becomes part of them. No product and sum are fused: results are the same with every compiler.

#pragma once

#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Half.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>

#define REDCO_DECODER inline __attribute__((always_inline))

namespace redco::quantized {

using Byte = unsigned char;

template <class T>
REDCO_DECODER T read(const Byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

REDCO_DECODER float half_at(const Byte* bytes) {
  return float(c10::Half(read<uint16_t>(bytes), c10::Half::from_bits()));
}

REDCO_DECODER int low(Byte pair) { return pair & 15; }
REDCO_DECODER int high(Byte pair) { return pair >> 4; }

// Nibbles of 32 elements: the low ones are elements 0 to 15, the high ones 16 to 31.
template <class Value, class Put>
REDCO_DECODER void nibbles(const Byte* bytes, const Value& value, const Put& put) {
  for (int i = 0; i < 16; ++i) put(i, value(i, low(bytes[i])));
  for (int i = 0; i < 16; ++i) put(i + 16, value(i + 16, high(bytes[i])));
}

// x = q scale
struct Q8_0 {
  static constexpr int size = 32, bytes = 34;
  template <class Put>
  static REDCO_DECODER void decode(const Byte* b, const Put& put) {
    const float scale = half_at(b);
    for (int i = 0; i < size; ++i) put(i, float(int8_t(b[2 + i])) * scale);
  }
};

// x = (q - 8) scale
struct Q4_0 {
  static constexpr int size = 32, bytes = 18;
  template <class Put>
  static REDCO_DECODER void decode(const Byte* b, const Put& put) {
    const float scale = half_at(b);
    nibbles(
        b + 2, [=](int, int q) { return float(q - 8) * scale; }, put);
  }
};

// x = q scale + least
struct Q4_1 {
  static constexpr int size = 32, bytes = 20;
  template <class Put>
  static REDCO_DECODER void decode(const Byte* b, const Put& put) {
    const float scale = half_at(b), least = half_at(b + 2);
    nibbles(
        b + 4, [=](int, int q) { return float(q) * scale + least; }, put);
  }
};

// As Q4_0 and Q4_1, with a fifth bit of each element.
struct Q5_0 {
  static constexpr int size = 32, bytes = 22;
  template <class Put>
  static REDCO_DECODER void decode(const Byte* b, const Put& put) {
    const float scale = half_at(b);
    const auto fifth = read<uint32_t>(b + 2);
    nibbles(
        b + 6, [=](int i, int q) { return float((q | int(fifth >> i & 1) << 4) - 16) * scale; },
        put);
  }
};

struct Q5_1 {
  static constexpr int size = 32, bytes = 24;
  template <class Put>
  static REDCO_DECODER void decode(const Byte* b, const Put& put) {
    const float scale = half_at(b), least = half_at(b + 2);
    const auto fifth = read<uint32_t>(b + 4);
    nibbles(
        b + 8, [=](int i, int q) { return float(q | int(fifth >> i & 1) << 4) * scale + least; },
        put);
  }
};

// 16 groups of 16 elements. x = q (scale s) - (least m), with s and m of 4 bits.
struct Q2_K {
  static constexpr int size = 256, bytes = 84;
  template <class Put>
  static REDCO_DECODER void decode(const Byte* b, const Put& put) {
    const float scale = half_at(b + 80), least = half_at(b + 82);
    for (int group = 0; group < 16; ++group) {
      const float s = scale * float(low(b[group])), m = least * float(high(b[group]));
      const Byte* q = b + 16 + group / 8 * 32 + group % 2 * 16;
      const int shift = group % 8 / 2 * 2;
      for (int i = 0; i < 16; ++i) put(group * 16 + i, s * float(q[i] >> shift & 3) - m);
    }
  }
};

// 16 groups of 16 elements. x = q (scale s), with s of 6 bits; the third bit of q is inverted.
struct Q3_K {
  static constexpr int size = 256, bytes = 110;
  static REDCO_DECODER int scale_of(const Byte* packed, int group) {
    const int four = group < 8 ? low(packed[group]) : high(packed[group - 8]);
    return (four | (packed[8 + group % 4] >> group / 4 * 2 & 3) << 4) - 32;
  }
  template <class Put>
  static REDCO_DECODER void decode(const Byte* b, const Put& put) {
    const float scale = half_at(b + 108);
    for (int group = 0; group < 16; ++group) {
      const float s = scale * float(scale_of(b + 96, group));
      const Byte *q = b + 32 + group / 8 * 32 + group % 2 * 16, *bits = b + group % 2 * 16;
      const int shift = group % 8 / 2 * 2, bit = group / 2;
      for (int i = 0; i < 16; ++i)
        put(group * 16 + i, s * float((q[i] >> shift & 3) - ((bits[i] >> bit & 1) != 0 ? 0 : 4)));
    }
  }
};

// The scale and the least of group `i` of 8, 6 bits each, of Q4_K and Q5_K.
REDCO_DECODER int scale_of_8(const Byte* packed, int i) {
  return i < 4 ? packed[i] & 63 : low(packed[i + 4]) | packed[i - 4] >> 6 << 4;
}
REDCO_DECODER int least_of_8(const Byte* packed, int i) {
  return i < 4 ? packed[i + 4] & 63 : high(packed[i + 4]) | packed[i] >> 6 << 4;
}

// 8 groups of 32 elements. x = q (scale s) - (least m)
struct Q4_K {
  static constexpr int size = 256, bytes = 144;
  template <class Put>
  static REDCO_DECODER void decode(const Byte* b, const Put& put) {
    const float scale = half_at(b), least = half_at(b + 2);
    for (int group = 0; group < 8; ++group) {
      const float s = scale * float(scale_of_8(b + 4, group));
      const float m = least * float(least_of_8(b + 4, group));
      const Byte* q = b + 16 + group / 2 * 32;
      const int shift = group % 2 * 4;
      for (int i = 0; i < 32; ++i) put(group * 32 + i, s * float(q[i] >> shift & 15) - m);
    }
  }
};

struct Q5_K {
  static constexpr int size = 256, bytes = 176;
  template <class Put>
  static REDCO_DECODER void decode(const Byte* b, const Put& put) {
    const float scale = half_at(b), least = half_at(b + 2);
    for (int group = 0; group < 8; ++group) {
      const float s = scale * float(scale_of_8(b + 4, group));
      const float m = least * float(least_of_8(b + 4, group));
      const Byte *q = b + 48 + group / 2 * 32, *fifth = b + 16;
      const int shift = group % 2 * 4;
      for (int i = 0; i < 32; ++i)
        put(group * 32 + i, s * float((q[i] >> shift & 15) | (fifth[i] >> group & 1) << 4) - m);
    }
  }
};

// 16 groups of 16 elements. x = q (scale s), with s of 8 bits and q of 6.
struct Q6_K {
  static constexpr int size = 256, bytes = 210;
  template <class Put>
  static REDCO_DECODER void decode(const Byte* b, const Put& put) {
    const float scale = half_at(b + 208);
    for (int group = 0; group < 16; ++group) {
      const float s = scale * float(int8_t(b[192 + group]));
      const int half = group / 8, part = group % 8 / 2, begin = group % 2 * 16;
      const Byte* q = b + half * 64 + part % 2 * 32 + begin;
      const Byte* upper = b + 128 + half * 32 + begin;
      for (int i = 0; i < 16; ++i) {
        const int lower = part < 2 ? low(q[i]) : high(q[i]);
        put(group * 16 + i, s * float((lower | (upper[i] >> part * 2 & 3) << 4) - 32));
      }
    }
  }
};

inline constexpr std::array<float, 16> iq4_values = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                     1,    13,   25,  38,  53,  69,  89,  113};

// x = value[q] scale
struct Iq4Nl {
  static constexpr int size = 32, bytes = 18;
  template <class Put>
  static REDCO_DECODER void decode(const Byte* b, const Put& put) {
    const float scale = half_at(b);
    nibbles(
        b + 2, [=](int, int q) { return iq4_values[size_t(q)] * scale; }, put);
  }
};

// 8 groups of 32 elements. x = value[q] (scale s), with s of 6 bits.
struct Iq4Xs {
  static constexpr int size = 256, bytes = 136;
  template <class Put>
  static REDCO_DECODER void decode(const Byte* b, const Put& put) {
    const float scale = half_at(b);
    const auto upper = read<uint16_t>(b + 2);
    for (int group = 0; group < 8; ++group) {
      const int lower = b[4 + group / 2] >> group % 2 * 4 & 15;
      const float s = scale * float((lower | (upper >> group * 2 & 3) << 4) - 32);
      nibbles(
          b + 8 + group * 16, [=](int, int q) { return iq4_values[size_t(q)] * s; },
          [&](int i, float value) { put(group * 32 + i, value); });
    }
  }
};

inline constexpr std::array<float, 16> mxfp4_values = {0, 1,  2,  3,  4,  6,  8,  12,
                                                       0, -1, -2, -3, -4, -6, -8, -12};

// x = value[q] 2^(exponent - 128): the values are twice those of E2M1.
struct Mxfp4 {
  static constexpr int size = 32, bytes = 17;
  template <class Put>
  static REDCO_DECODER void decode(const Byte* b, const Put& put) {
    const uint32_t exponent = b[0];
    const uint32_t bits = exponent < 2 ? 0x200000u << exponent : (exponent - 1) << 23;
    float scale;
    std::memcpy(&scale, &bits, sizeof(scale));
    nibbles(
        b + 1, [=](int, int q) { return mxfp4_values[size_t(q)] * scale; }, put);
  }
};

// Two neighbours share a byte, the first in its high nibble. x = value[q] scale
template <const std::array<float, 16>& values>
struct Code4 {
  static constexpr int size = 64, bytes = 36;
  template <class Put>
  static REDCO_DECODER void decode(const Byte* b, const Put& put) {
    const auto scale = read<float>(b);
    for (int i = 0; i < size / 2; ++i) {
      put(2 * i, values[size_t(high(b[4 + i]))] * scale);
      put(2 * i + 1, values[size_t(low(b[4 + i]))] * scale);
    }
  }
};

inline constexpr std::array<float, 16> nf4_values = {-1.0f,
                                                     -0.6961928009986877f,
                                                     -0.5250730514526367f,
                                                     -0.39491748809814453f,
                                                     -0.28444138169288635f,
                                                     -0.18477343022823334f,
                                                     -0.09105003625154495f,
                                                     0.0f,
                                                     0.07958029955625534f,
                                                     0.16093020141124725f,
                                                     0.24611230194568634f,
                                                     0.33791524171829224f,
                                                     0.44070982933044434f,
                                                     0.5626170039176941f,
                                                     0.7229568362236023f,
                                                     1.0f};
// A sign, and the numbers of two bits of exponent and one of mantissa divided by 12.
inline constexpr std::array<float, 16> fp4_values = {
    0.0f,          0.0625f / 12.0f,  8.0f / 12.0f,  1.0f,
    4.0f / 12.0f,  6.0f / 12.0f,     2.0f / 12.0f,  3.0f / 12.0f,
    0.0f,          -0.0625f / 12.0f, -8.0f / 12.0f, -1.0f,
    -4.0f / 12.0f, -6.0f / 12.0f,    -2.0f / 12.0f, -3.0f / 12.0f};

// x = q scale
struct Int8 {
  static constexpr int size = 64, bytes = 68;
  template <class Put>
  static REDCO_DECODER void decode(const Byte* b, const Put& put) {
    const auto scale = read<float>(b);
    for (int i = 0; i < size; ++i) put(i, float(int8_t(b[4 + i])) * scale);
  }
};

// x = (q - zero) scale; of two neighbours in a byte the first is in the low nibble.
struct Int4 {
  static constexpr int size = 64, bytes = 37;
  template <class Put>
  static REDCO_DECODER void decode(const Byte* b, const Put& put) {
    const auto scale = read<float>(b);
    const int zero = b[4];
    for (int i = 0; i < size / 2; ++i) {
      put(2 * i, float(low(b[5 + i]) - zero) * scale);
      put(2 * i + 1, float(high(b[5 + i]) - zero) * scale);
    }
  }
};

// The numbers of 4 bits of exponent and 3 of mantissa: float8_e4m3fn.
inline const std::array<float, 256> e4m3_values = [] {
  std::array<float, 256> values{};
  for (int i = 0; i < 256; ++i)
    values[size_t(i)] = c10::detail::fp8e4m3fn_to_fp32_value(uint8_t(i));
  return values;
}();

// x = value[q] scale
struct Fp8 {
  static constexpr int size = 64, bytes = 68;
  template <class Put>
  static REDCO_DECODER void decode(const Byte* b, const Put& put) {
    const auto scale = read<float>(b);
    for (int i = 0; i < size; ++i) put(i, e4m3_values[b[4 + i]] * scale);
  }
};

using Nf4 = Code4<nf4_values>;
using Fp4 = Code4<fp4_values>;

}  // namespace redco::quantized
