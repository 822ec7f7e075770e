#pragma once

#include "fill.h"

#include <c10/core/Device.h>

#include <cmath>

namespace redco {

/// The places of a local tensor's elements, which, taken in row-major order, are runs of
/// consecutive numbers.
class Places {
 public:
  Places(at::IntArrayRef sizes, const Stream& stream);

  /// The elements of a run.
  int64_t run_length() const { return run_length_; }

  /// The place of the first element of run `number`.
  int64_t run(int64_t number) const;

  /// All as an int64 tensor of the local sizes.
  at::Tensor tensor(at::Device device) const;

 private:
  at::IntArrayRef sizes_;
  c10::SmallVector<int64_t, 6> strides_;  // of the logical tensor
  int64_t first_, run_length_ = 1;
  size_t n_outer_ = 0;  // dimensions outside the runs
};

constexpr double two_to(int exponent) {
  double result = 1;
  for (; exponent < 0; ++exponent) result /= 2;
  for (; exponent > 0; --exponent) result *= 2;
  return result;
}

// Normal numbers of float32: bit 31 of a word is the sign; the 24 below it, and a half, choose the
// quantile from (0, 1/2).
constexpr int quantile_bits = 24;
constexpr double quantile_step = two_to(-quantile_bits - 1);

// A word below this gives 1 with probability p.
inline int64_t bernoulli_bound(double p) { return int64_t(std::ceil(p * two_to(32))); }

}  // namespace redco
