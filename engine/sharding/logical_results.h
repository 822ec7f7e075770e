#pragma once

#include "plan.h"

#include <optional>
#include <vector>

namespace redco::sharding {

/// The geometries that one process alone would get for a call's results, lists taken apart: the
/// operator runs on tensors of the logical geometry, which have no memory, or are small. Empty if
/// it can't, as where values decide the sizes; nothing for a result that is not a new tensor.
/// Throws the operator's error if it is a view, or writes to elements that share memory: a part
/// alone might not show it.
std::vector<std::optional<Geometry>> logical_results(const Call& call);

}  // namespace redco::sharding
