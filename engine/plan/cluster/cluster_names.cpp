// Names in descriptions of clusters.

#include "cluster_names.h"

#include "../../core/require_usage.h"
#include "device_tables.h"

#include <redco/error.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <map>

namespace redco::plan {

namespace {

constexpr std::array<const char*, 3> kinds = {"gpu", "tpu", "cpu"};

const std::map<std::string, c10::ScalarType> dtypes = {{"bfloat16", c10::kBFloat16},
                                                       {"float16", c10::kHalf},
                                                       {"float32", c10::kFloat},
                                                       {"float64", c10::kDouble},
                                                       {"float8", c10::kFloat8_e4m3fn}};

// A name is near if it is within a few letters, or begins alike: "H100-94G" is near "H100-80G".
std::string unknown(const char* what, const std::string& name, const std::set<std::string>& names) {
  std::string upper = name, known;
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char c) { return char(std::toupper(c)); });
  std::string near = nearest(name, names);
  if (near.empty()) near = nearest(upper, names);
  for (const std::string& each : names) known += (known.empty() ? "" : ", ") + each;
  return std::string("there is no ") + what + " '" + name + "'" +
         (near.empty() ? "; there are: " + known : "; did you mean '" + near + "'?") +
         (what == std::string("device") ? " A cluster.toml can describe others." : "");
}

}  // namespace

std::string unknown_device(const std::string& name) {
  return unknown("device", name, device_names());
}

std::string unknown_link(const std::string& name) { return unknown("link", name, link_names()); }

void check_size(const ClusterSpec& cluster, const std::string& where) {
  require_usage(cluster.n_devices() <= most_devices, where, ": ", cluster.n_devices(),
                " devices are more than ", most_devices);
}

std::optional<DeviceFacts::Kind> device_kind(const std::string& name) {
  for (size_t i = 0; i < kinds.size(); ++i)
    if (name == kinds[i]) return DeviceFacts::Kind(i);
  return std::nullopt;
}

const char* name_of(DeviceFacts::Kind kind) { return kinds[kind]; }

const char* name_of(ProductKind kind) {
  constexpr std::array names = {"matmul", "attention", "biased_attention", "convolution"};
  static_assert(names.size() == product_kinds.size());
  return names[size_t(kind)];
}

const std::set<std::string>& dtype_names() {
  static const std::set<std::string> names = [] {
    std::set<std::string> all;
    for (const auto& [name, dtype] : dtypes) all.insert(name);
    return all;
  }();
  return names;
}

std::optional<c10::ScalarType> dtype_of(const std::string& name) {
  auto found = dtypes.find(name);
  return found == dtypes.end() ? std::nullopt : std::optional(found->second);
}

std::string name_of(c10::ScalarType dtype) {
  for (const auto& [name, each] : dtypes)
    if (each == dtype) return name;
  return c10::toString(dtype);
}

}  // namespace redco::plan
