#pragma once

#include <redco/export.h>

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <optional>

namespace redco {

/// The type in which this thread's products run on a device now; none: autocast is off.
REDCO_API std::optional<c10::ScalarType> autocast_dtype(c10::DeviceType device);

/// Runs this thread's operators under the policy of torch.autocast for as long as it lives:
/// products, convolutions and attention in `dtype`; norms, softmax, losses, exponents, logarithms,
/// powers and sums in float32; everything else in the type of its arguments. float64 tensors stay
/// float64.
///
/// The policy is the one that PyTorch has for GPUs, on every device, so that a model trains alike
/// on all. PyTorch's own for CPUs leaves softmax, layer_norm and others in 16 bits.
///
/// A weight is cast each time it is used: LibTorch's cache of casts would keep the value of one
/// that changes in place, and a cast made without gradients would be used where they are recorded.
class REDCO_API Autocast {
 public:
  /// `dtype`: float16 or bfloat16; none switches autocast off.
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
