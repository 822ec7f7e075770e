#pragma once

#include <redco/cluster.h>

#include <optional>
#include <set>
#include <string>

namespace redco::plan {

/// A device of the built-in table. Names are compared without case. A name without the memory, such
/// as "A100", means the device of that name with the least memory.
REDCO_API std::optional<DeviceFacts> find_device(const std::string& name);
/// A device of the built-in table by the name that its driver reports, such as
/// "NVIDIA H100 80GB HBM3", and its memory, which distinguishes devices of one name.
REDCO_API std::optional<DeviceFacts> find_reported_device(const std::string& name, int64_t memory);
/// A link of the built-in table. "ib 400G", "ib-400" and "IB 400" are one name.
REDCO_API std::optional<LinkFacts> find_link(const std::string& name);

REDCO_API std::set<std::string> device_names();
REDCO_API std::set<std::string> link_names();

/// Returns the memory of a device that drivers and libraries take, by the kind of device.
REDCO_API ReservedMemory default_reserve(DeviceFacts::Kind kind);

/// The time of the host for an operator, in launches of `launch_us`: Lua, autograd and freeing
/// memory included.
struct HostLaunches {
  double of_operator, of_view;
};

/// Constants of the cost model, where nothing was measured.
struct ModelConstants {
  double bandwidth_share;  ///< of the memory's bandwidth that operators reach
  double launch_us;        ///< of one operator; on a GPU, of its host
  double kernel_us;        ///< of a GPU, for one operator besides its work
  HostLaunches host;
  Efficiency matmul;       ///< share of what large products reach, by the smallest of m, n and k
  double attention_share;  ///< of attention and convolutions: share of what large products reach
  double biased_attention_share;  ///< the same of attention with a trained bias
  double spread;                  ///< the standard deviation of the speed of devices that are alike
};
REDCO_API const ModelConstants& constants_of(DeviceFacts::Kind kind);

}  // namespace redco::plan
