#pragma once

#include <redco/export.h>

namespace redco {

/// While it exists, `linear` of this thread multiplies matrices in bfloat16 as numbers of 8 bits
/// where rows, inputs and outputs are multiples of 16 and there are at least 128 inputs and
/// outputs: x and the weight as float8_e4m3fn, gradients as float8_e5m2, each divided by a power of
/// two so that its largest element fits. Sums are in float32, results in bfloat16. There is no
/// second derivative. GPUs need compute capability 8.9; CPUs compute the same numbers in bfloat16.
class REDCO_API Float8Products {
 public:
  explicit Float8Products(bool are_on);
  ~Float8Products();
  Float8Products(const Float8Products&) = delete;
  Float8Products& operator=(const Float8Products&) = delete;
  static bool are_on();

 private:
  bool outer_;
};

}  // namespace redco
