// The kernels of the CPU for blocks of quantized numbers.

#pragma once

#include <redco/quantized.h>

#include <cstddef>

namespace redco::quantized {

/// Decodes `n` blocks.
using Decode = void (*)(const std::byte* blocks, float* to, int64_t n);
/// Encodes `n` blocks. `importance` has the weight of the square of each element's error in each
/// block; null: all are equal.
using Encode = void (*)(const float* from, const float* importance, std::byte* blocks, int64_t n);

/// Throws Error for an unknown type.
Decode decoder_of(const std::string& type);
/// Throws Error for an unknown type.
Encode encoder_of(const std::string& type);

}  // namespace redco::quantized
