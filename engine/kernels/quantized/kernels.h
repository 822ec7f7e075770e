// The kernels of the CPU for blocks of quantized numbers.

#pragma once

#include <redco/export.h>
#include <redco/quantized.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace redco::quantized {

/// Of one type, for the instruction set of this processor.
struct Kernels {
  /// Decodes `n` blocks.
  void (*decode)(const std::byte* blocks, float* to, int64_t n);
  /// Computes y = W x of blocks W [n_out, n_blocks] without a copy of decoded numbers. The values
  /// are those of `few_rows_linear` on decoded numbers.
  void (*multiply)(const std::byte* blocks, const float* x, float* y, int64_t n_blocks,
                   int64_t n_out);
};

/// Encodes `n` blocks. `importance` has the weight of the square of each element's error in each
/// block; null: all are equal.
using Encode = void (*)(const float* from, const float* importance, std::byte* blocks, int64_t n);

/// Throws Error for an unknown type.
const Kernels& kernels_of(const std::string& type);
/// Those of all instruction sets that this processor has, the plain ones first.
REDCO_API std::vector<const Kernels*> all_kernels_of(const std::string& type);
/// Throws Error for an unknown type.
Encode encoder_of(const std::string& type);

}  // namespace redco::quantized
