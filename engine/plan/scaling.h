#pragma once

#include <redco/export.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace redco::plan {

enum class Scaling : uint8_t {
  weak,   ///< the global batch grows with the number of devices
  strong  ///< the global batch stays the same
};

/// The best plan for a number of devices.
struct ScalingStep {
  double seconds = 0;    ///< of a step; 0 if nothing fits
  double mfu = 0;        ///< model FLOPs utilization
  std::string why = {};  ///< why nothing fits, or what the plan is
};

struct ScalingPoint {
  int64_t n_devices = 0;
  int64_t global_batch = 0;
  ScalingStep step = {};
  double examples_per_second = 0;  ///< of all devices
  /// The examples per second and device, as a share of those at the first number of devices that
  /// something fits on.
  double efficiency = 0;
};

/// Plans for each number of devices. `global_batch` is that of the first number; `plan` is called
/// with a number of devices and a global batch. Throws UsageError if weak scaling does not give a
/// whole batch.
REDCO_API std::vector<ScalingPoint> scaling_curve(
    const std::vector<int64_t>& n_devices, Scaling scaling, int64_t global_batch,
    const std::function<ScalingStep(int64_t n_devices, int64_t global_batch)>& plan);

/// Parses "8", "8,16,64" or "8,16,...,1024": the two numbers before the dots give the step, which
/// is a factor if it divides evenly, else a difference. Throws UsageError, which begins with
/// --devices, for other text, numbers that do not ascend, and a last number that is not reached.
REDCO_API std::vector<int64_t> parse_device_numbers(const std::string& text);

}  // namespace redco::plan
