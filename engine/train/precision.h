#pragma once

#include <redco/autocast.h>

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <optional>

namespace redco::train {

/// The dtypes in which a loss is computed. The parameters may have another.
struct Precision {
  at::ScalarType compute_dtype;
  std::optional<at::ScalarType> autocast_dtype;

  at::ScalarType dtype() const { return autocast_dtype.value_or(compute_dtype); }
  /// Whether the loss is scaled: small gradients underflow in float16.
  bool is_scaled() const { return dtype() == at::kHalf; }
  /// The Autocast that applies to the loss: this one, or the caller's.
  Autocast autocast(c10::DeviceType device) const {
    return Autocast(device, autocast_dtype ? autocast_dtype : redco::autocast_dtype(device));
  }
};

}  // namespace redco::train
