#pragma once

#include <redco/export.h>

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <optional>

namespace redco {

/// The dtype in which this thread currently runs matrix products on a device; none if autocast is
/// off.
REDCO_API std::optional<c10::ScalarType> autocast_dtype(c10::DeviceType device);

/// While it exists, this thread runs operators under the policy of torch.autocast: matrix products,
/// convolutions and attention in `dtype`; norms, softmax, losses, exponents, logarithms, powers and
/// sums in float32; everything else in the dtype of its arguments. float64 tensors stay float64.
///
/// Every device uses PyTorch's policy for GPUs, so that a model trains the same way on all of them.
/// PyTorch's own CPU policy leaves softmax, layer_norm and others in 16 bits.
///
/// A weight is cast each time it is used. LibTorch's cache of casts would return a stale value for
/// a weight that is updated in place, and would reuse a cast made without gradients where gradients
/// are recorded.
class REDCO_API Autocast {
 public:
  /// `dtype` is float16 or bfloat16; none disables autocast.
  Autocast(c10::DeviceType device, std::optional<c10::ScalarType> dtype);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  c10::DeviceType device_;
  bool was_enabled_, was_cached_;
  c10::ScalarType was_dtype_;
};

}  // namespace redco
