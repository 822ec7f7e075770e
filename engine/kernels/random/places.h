#pragma once

#include "fill.h"
#include "floats.h"

#include <c10/core/Device.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace redco::random {

/// The positions of a local tensor's elements. In row-major order they form runs of consecutive
/// numbers.
class REDCO_API Places {
 public:
  Places(at::IntArrayRef sizes, const Stream& stream);

  /// The number of elements in a run.
  int64_t run_length() const { return run_length_; }

  /// The position of the first element of run `number`.
  int64_t run(int64_t number) const;

  /// Run `number` is at the sum of `first()` and, for each dimension outside the runs, its index
  /// times `stride(dim)`.
  int64_t first() const { return first_; }
  size_t n_outer() const { return n_outer_; }
  int64_t stride(size_t dim) const { return strides_[dim]; }

  /// All positions as an int64 tensor of the local sizes.
  at::Tensor tensor(at::Device device) const;

 private:
  at::IntArrayRef sizes_;
  c10::SmallVector<int64_t, 6> strides_;  // of the logical tensor
  int64_t first_, run_length_ = 1;
  size_t n_outer_ = 0;  // dimensions outside the runs
};

/// The number of significant digits of a floating-point dtype, which are those of uniform numbers.
int digits_of(at::ScalarType type);

// A word is below this bound with probability p.
inline int64_t bernoulli_bound(double p) { return int64_t(std::ceil(p * two_to(32))); }

// Returns the factor by which dropout multiplies the elements that it keeps.
inline double dropout_scale(double p) { return p < 1 ? 1 / (1 - p) : 0; }

/// The same, rounded to the dtype of what it multiplies.
double dropout_factor(double p, at::ScalarType dtype);

/// The largest word with which dropout keeps an element.
inline uint32_t last_kept(double p) {
  return uint32_t(std::max<int64_t>(1, bernoulli_bound(1 - p)) - 1);
}

/// Whether integers of this range are scaled down from 64 bits; for larger ranges they are 63 bits
/// modulo the range. In both cases the bias of an integer is at most range / 2^63.
constexpr bool is_short(uint64_t range) { return range > 0 && range < uint64_t(1) << 31; }

}  // namespace redco::random
