#pragma once

#include <redco/cluster.h>

#include <optional>
#include <set>
#include <string>

namespace redco::plan {

/// Messages about names that no table has, with the nearest one.
std::string unknown_device(const std::string& name);
std::string unknown_link(const std::string& name);

/// The most devices of a cluster.
constexpr int64_t most_devices = 10'000'000;
/// Throws UsageError, which begins with `where`, for a cluster that is larger.
void check_size(const ClusterSpec& cluster, const std::string& where);

/// Names that a cluster.toml uses: "gpu", "bfloat16".
std::optional<DeviceFacts::Kind> device_kind(const std::string& name);
const char* name_of(DeviceFacts::Kind kind);
const char* name_of(ProductKind kind);
const std::set<std::string>& dtype_names();
std::optional<c10::ScalarType> dtype_of(const std::string& name);
std::string name_of(c10::ScalarType dtype);

}  // namespace redco::plan
