#pragma once

#include <redco/export.h>

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstdint>

namespace redco {

/// Which elements of a logical tensor a local tensor holds: the box of the local sizes that starts
/// at `starts`.
struct Region {
  c10::SmallVector<int64_t, 6> sizes;   ///< of the logical tensor
  c10::SmallVector<int64_t, 6> starts;  ///< one for each dimension

  /// All of a tensor.
  REDCO_API static Region whole(at::IntArrayRef sizes);
};

/// The random numbers of one tensor: an element's are those at its place, its row-major index in
/// the logical tensor. So they depend neither on how it is split, nor on strides, nor on threads,
/// and are the same on every device - normal ones to rounding.
struct Stream {
  uint64_t key;
  Region region;
  int64_t first = 0;  ///< the place of the logical tensor's first element
};

/// Each fills `out`, of any strides, on any device that holds numbers. Floating-point types up to
/// float32 and `fill_bernoulli` take a word of the stream for an element, the others two.

/// Floating-point numbers low + u (high - low), u in [0, 1), in as many steps as the type has
/// digits.
REDCO_API void fill_uniform(at::Tensor out, const Stream& stream, double low, double high);

/// float64 numbers in (0, 1), 2^52 of them, for the inverse of a distribution.
REDCO_API void fill_open_uniform(at::Tensor out, const Stream& stream);

/// By the inverse of the normal distribution; in float32 that of Giles, "Approximating the erfinv
/// function", GPU Computing Gems, 2011.
REDCO_API void fill_normal(at::Tensor out, const Stream& stream, double mean, double std);

/// 1 with probability p, else 0, in any type.
REDCO_API void fill_bernoulli(at::Tensor out, const Stream& stream, double p);

/// Integers base .. base + range - 1 in any type but bool; range 0 stands for 2^64.
REDCO_API void fill_integers(at::Tensor out, const Stream& stream, int64_t base, uint64_t range);

/// The same by tensor operators alone: what the functions above do for other devices than the CPU.
namespace by_operators {
REDCO_API void fill_uniform(at::Tensor out, const Stream& stream, double low, double high);
REDCO_API void fill_open_uniform(at::Tensor out, const Stream& stream);
REDCO_API void fill_normal(at::Tensor out, const Stream& stream, double mean, double std);
REDCO_API void fill_bernoulli(at::Tensor out, const Stream& stream, double p);
REDCO_API void fill_integers(at::Tensor out, const Stream& stream, int64_t base, uint64_t range);
}  // namespace by_operators

}  // namespace redco
