#pragma once

#include "layout_search.h"

#include <redco/sharding_rules.h>
#include <redco/tree.h>

#include <cstdint>
#include <map>
#include <vector>

namespace redco::sharding {

/// The parameters that may be split, and their indices by the tensors.
std::vector<TracedParameter> parameters_of(const Tree& params, std::map<const void*, int>& places);

/// The forward pass on an imagined mesh of this many model shards.
WatchedForward watched(const Tree& params, const std::map<const void*, int>& places,
                       const TracedForward& forward, int64_t n_model_shards,
                       const std::vector<TracedParameter>& parameters);

}  // namespace redco::sharding
