// What decoders and encoders of quantized numbers share. The formats are those of
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

#define REDCO_CODE(name) inline constexpr Code name
#include "codes.cuh"
#undef REDCO_CODE

}  // namespace redco::quantized
