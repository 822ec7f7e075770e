#pragma once

#include "call_plan.h"

#include <optional>
#include <vector>

namespace redco::sharding {

/// Returns the geometries that one process alone would get for a call's results (lists flattened),
/// by running the operator on meta tensors of the logical geometry, or on small zero tensors.
/// Returns an empty vector if that fails, for instance because values decide the sizes; nullopt for
/// a result that is not a new tensor. Throws the operator's error if it is a view or writes to
/// elements that share memory: a local call might not detect these errors.
std::vector<std::optional<Geometry>> logical_results(const Call& call);

}  // namespace redco::sharding
