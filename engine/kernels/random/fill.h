#pragma once

#include <redco/export.h>

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstdint>

namespace redco::random {

/// The elements of a logical tensor that a local tensor holds: the box of the local sizes that
/// starts at `starts`.
struct Region {
  c10::SmallVector<int64_t, 6> sizes;   ///< of the logical tensor
  c10::SmallVector<int64_t, 6> starts;  ///< one for each dimension

  /// The region of a whole tensor.
  REDCO_API static Region whole(at::IntArrayRef sizes);
};

/// The random numbers of one tensor. An element's number depends only on its position, the
/// row-major index in the logical tensor: not on sharding, strides or threads. It is the same on
/// every device, for normal numbers up to rounding.
struct Stream {
  uint64_t key;
  Region region;
  int64_t first = 0;  ///< the position of the logical tensor's first element
};

/// Each function fills `out`, of any strides, on any device with storage. Floating-point dtypes up
/// to float32 and `fill_bernoulli` use one word of the stream per element, the others two.

/// Floating-point numbers low + u (high - low), u in [0, 1), with as many bits as the dtype has
/// significant digits.
REDCO_API void fill_uniform(at::Tensor out, const Stream& stream, double low, double high);

/// float64 numbers in (0, 1), 2^52 of them, for inverse transform sampling.
REDCO_API void fill_open_uniform(at::Tensor out, const Stream& stream);

/// By the inverse of the normal distribution; in float32 with the formula of Giles, "Approximating
/// the erfinv function", GPU Computing Gems, 2011.
REDCO_API void fill_normal(at::Tensor out, const Stream& stream, double mean, double std);

/// 1 with probability p, else 0, in any dtype.
REDCO_API void fill_bernoulli(at::Tensor out, const Stream& stream, double p);

/// out = x times factors. A factor is 1 / (1 - p), rounded to the dtype, with probability 1 - p, by
/// the numbers of `fill_bernoulli`, else 0. The tensors are alike; `factors` may be undefined.
REDCO_API void fill_dropout(at::Tensor out, at::Tensor factors, const at::Tensor& x,
                            const Stream& stream, double p);

/// Integers base .. base + range - 1 in any dtype but bool; range 0 means 2^64.
REDCO_API void fill_integers(at::Tensor out, const Stream& stream, int64_t base, uint64_t range);

/// The same for devices other than the CPU: by kernels on CUDA GPUs, else by tensor operators.
namespace on_device {
void fill_uniform(at::Tensor out, const Stream& stream, double low, double high);
void fill_open_uniform(at::Tensor out, const Stream& stream);
void fill_normal(at::Tensor out, const Stream& stream, double mean, double std);
void fill_bernoulli(at::Tensor out, const Stream& stream, double p);
/// Of dense tensors. False if it has to be done by other operators.
bool fill_dropout(at::Tensor out, const at::Tensor& x, const Stream& stream, double p);
void fill_integers(at::Tensor out, const Stream& stream, int64_t base, uint64_t range);
}  // namespace on_device

/// The same with tensor operators only.
namespace by_operators {
REDCO_API void fill_uniform(at::Tensor out, const Stream& stream, double low, double high);
REDCO_API void fill_open_uniform(at::Tensor out, const Stream& stream);
REDCO_API void fill_normal(at::Tensor out, const Stream& stream, double mean, double std);
REDCO_API void fill_bernoulli(at::Tensor out, const Stream& stream, double p);
REDCO_API void fill_integers(at::Tensor out, const Stream& stream, int64_t base, uint64_t range);
}  // namespace by_operators

}  // namespace redco::random
