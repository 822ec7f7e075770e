#pragma once

#include <redco/autocast.h>
#include <redco/float8.h>

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <optional>

namespace redco::train {

/// The dtypes in which a loss is computed. The parameters may have another.
struct Precision {
  at::ScalarType compute_dtype;
  std::optional<at::ScalarType> autocast_dtype;
  bool float8_products = false;

  at::ScalarType dtype() const { return autocast_dtype.value_or(compute_dtype); }
  /// Whether the loss is scaled: small gradients underflow in float16.
  bool is_scaled() const { return dtype() == at::kHalf; }

  /// While it exists, operators compute in this precision, or under the caller's Autocast.
  struct Region {
    Region(const Precision& precision, c10::DeviceType device)
        : autocast(device, precision.autocast_dtype ? precision.autocast_dtype
                                                    : redco::autocast_dtype(device)),
          float8(precision.float8_products) {}
    Autocast autocast;
    Float8Products float8;
  };
  Region region(c10::DeviceType device) const { return Region(*this, device); }
};

}  // namespace redco::train
