#pragma once

#include <redco/export.h>

#include <ATen/core/Tensor.h>

#include <optional>

namespace redco {

/// The type of the device that this thread's tensors of the device meta stand for; none outside of
/// plans.
REDCO_API std::optional<c10::DeviceType> planned_device();

/// Sets it for a scope.
class REDCO_API WithPlannedDevice {
 public:
  explicit WithPlannedDevice(c10::DeviceType type);
  ~WithPlannedDevice();
  WithPlannedDevice(const WithPlannedDevice&) = delete;
  WithPlannedDevice& operator=(const WithPlannedDevice&) = delete;

 private:
  std::optional<c10::DeviceType> outer_;
};

/// The type of the device that a tensor is on or, in a plan, will be on.
inline c10::DeviceType device_type_of(const at::Tensor& tensor) {
  return tensor.is_meta() ? planned_device().value_or(c10::kMeta) : tensor.device().type();
}

}  // namespace redco
