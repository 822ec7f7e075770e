// Constants of the decoders and encoders of quantized numbers. The formats are those of
// ggml-common.h of llama.cpp, and nf4 and fp4 those of bitsandbytes' functional.py with the scale
// in front of each block. int8, int4 and fp8 are the rows and groups of quantized folders: each
// block has a copy of its scale.

#pragma once

#include <array>
#include <cstdint>
#include <cstring>

#define REDCO_INLINE inline __attribute__((always_inline))
#define REDCO_LAMBDA __attribute__((always_inline))

namespace redco::quantized {

using Byte = unsigned char;

template <class T>
REDCO_INLINE T read(const Byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

/// The floats of all numbers of 16 bits, for scales: a load keeps the units of arithmetic free.
extern float half_values[1 << 16];
/// The same of float8_e4m3fn: 4 bits of exponent and 3 of mantissa.
extern float e4m3_values[1 << 8];

/// The elements that share a scale, of types that are not of llama.cpp.
constexpr int group_size = 64;

using Code = std::array<float, 16>;

inline constexpr Code iq4_values = {-127, -104, -83, -65, -49, -35, -22, -10,
                                    1,    13,   25,  38,  53,  69,  89,  113};

/// Twice those of E2M1.
inline constexpr Code mxfp4_values = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

inline constexpr Code nf4_values = {-1.0f,
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

/// A sign, and the numbers of two bits of exponent and one of mantissa divided by 12.
inline constexpr Code fp4_values = {0.0f,          0.0625f / 12.0f,  8.0f / 12.0f,  1.0f,
                                    4.0f / 12.0f,  6.0f / 12.0f,     2.0f / 12.0f,  3.0f / 12.0f,
                                    0.0f,          -0.0625f / 12.0f, -8.0f / 12.0f, -1.0f,
                                    -4.0f / 12.0f, -6.0f / 12.0f,    -2.0f / 12.0f, -3.0f / 12.0f};

}  // namespace redco::quantized
