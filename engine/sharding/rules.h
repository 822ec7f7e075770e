#pragma once

#include "split_dimension.h"

#include <string_view>
#include <unordered_map>

namespace redco {

using RuleTable = std::unordered_map<std::string_view, Rule>;

// One table for each kind of operator, each in a file of its name.
const RuleTable& product_rules();
const RuleTable& pointwise_rules();
const RuleTable& reduction_rules();
const RuleTable& view_rules();
const RuleTable& softmax_rules();
const RuleTable& loss_rules();
const RuleTable& elementwise_loss_rules();
const RuleTable& fused_loss_rules();
const RuleTable& embedding_rules();
const RuleTable& indexing_rules();
const RuleTable& advanced_indexing_rules();
const RuleTable& own_dimension_rules();
const RuleTable& joining_rules();
const RuleTable& padding_rules();
const RuleTable& statistics_rules();
const RuleTable& extremes_rules();
const RuleTable& strided_view_rules();
const RuleTable& searching_rules();

/// Letters 0, 1, ... for the dimensions of a tensor.
Letters letters(int64_t n_dims, int first = 0);

/// Every dimension of the broadcast results is a factor; an argument's dimension of one element
/// that is broadcast is none. Nothing, where an argument does not broadcast to `sizes`.
std::optional<Factors> pointwise_factors(const Call& call, at::IntArrayRef sizes);

/// The dimensions that a call reduces over.
struct Reduction {
  std::vector<int64_t> dims;  ///< that go
  bool keeps = false;         ///< as dimensions of one element
};
Reduction reduction_of(const Call& call);
/// Nothing, where an argument for the result has other dimensions than it.
std::optional<Factors> reduction_factors(const Call& call, const Reduction& reduction, ReduceOp op);
/// The mesh dimensions over which a plan's results are partial. They are made whole in the plan:
/// what runs brings the parts together.
MeshDims reduced_over(Plan& plan);

/// A reduction over a dimension that must be whole.
std::optional<Plan> reduced_along_dim(const Call& call);

/// A plan that passes sums on, with the strides of the results.
std::optional<Plan> view_by_factors(const Call& call, Factors factors);

/// Whether an output is partial over `dim` because a factor that is reduced is split.
bool is_reduced_over(const Call& call, const Plan& plan, const OutputPlan& output, Mesh::Dim dim);

}  // namespace redco
