#pragma once

#include <redco/export.h>
#include <redco/plan.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace redco {

enum class Scaling : uint8_t {
  weak,   ///< the global batch grows with the number of devices
  strong  ///< the global batch stays the same
};

/// The best plan for a number of devices.
struct ScalingPoint {
  int64_t n_devices = 0;
  int64_t global_batch_size = 0;
  PlannedLayout layout = {};       ///< if none fits, `why` says why
  double examples_per_second = 0;  ///< of all devices; 0 if none fits
  /// The examples per second and device, as a share of those at the first number of devices that
  /// something fits on.
  double efficiency = 0;
};

/// Plans for each number of devices. `global_batch_size` is that of the first number; `plan` is
/// called with a number of devices and a global batch. Throws UsageError if weak scaling does not
/// give a whole batch.
REDCO_API std::vector<ScalingPoint> scaling_curve(
    const std::vector<int64_t>& n_devices, Scaling scaling, int64_t global_batch_size,
    const std::function<PlannedLayout(int64_t n_devices, int64_t global_batch_size)>& plan);

/// The same with plan_step, which searches for at most `options.timeout` in all, on clusters of
/// these numbers of the same devices. The batch of the first number is that of the options.
REDCO_API std::vector<ScalingPoint> plan_scaling(const TrainerOptions& trainer,
                                                 const Dataset& examples,
                                                 const ClusterSpec& cluster,
                                                 const std::vector<int64_t>& n_devices,
                                                 Scaling scaling, const PlanOptions& options = {});

/// Says at which number of devices the speed of a device falls most, and what of the step grew;
/// empty if it falls nowhere by 2 %.
REDCO_API std::string bend_of(const std::vector<ScalingPoint>& curve);

/// Parses "8", "8,16,64" or "8,16,...,1024": the two numbers before the dots give the step, which
/// is a factor if it divides evenly, else a difference. Throws UsageError, which begins with
/// --devices, for other text, numbers that do not ascend, and a last number that is not reached.
REDCO_API std::vector<int64_t> parse_device_numbers(const std::string& text);

}  // namespace redco
