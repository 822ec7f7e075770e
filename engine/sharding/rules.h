#pragma once

#include "plan.h"

#include <string_view>
#include <unordered_map>

namespace redco {

using RuleTable = std::unordered_map<std::string_view, Rule>;

// One table for each kind of operator, each in a file of its name.
const RuleTable& product_rules();
const RuleTable& pointwise_rules();
const RuleTable& reduction_rules();
const RuleTable& view_rules();
const RuleTable& list_rules();
const RuleTable& storage_rules();

/// Letters 0, 1, ... for the dimensions of a tensor.
Letters letters(int64_t n_dims, int first = 0);

/// Every dimension of the broadcast results is a factor; an argument's dimension of one element
/// that is broadcast is none. Nothing, where an argument does not broadcast to `sizes`.
std::optional<Factors> pointwise_factors(const Call& call, at::IntArrayRef sizes);

/// Whether an output is partial over `dim` because a factor that is reduced is split.
bool is_reduced_over(const Call& call, const Plan& plan, const OutputPlan& output, Mesh::Dim dim);

}  // namespace redco
