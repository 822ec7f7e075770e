#pragma once

#include "split_dimension.h"

#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace redco::sharding {

using RuleTable = std::unordered_map<std::string_view, OperatorFacts>;

// One table for each kind of operator, each in a file of its name.
const RuleTable& product_rules();
const RuleTable& pointwise_rules();
const RuleTable& reduction_rules();
const RuleTable& view_rules();
const RuleTable& reshaping_rules();
const RuleTable& softmax_rules();
const RuleTable& loss_rules();
const RuleTable& elementwise_loss_rules();
const RuleTable& fused_loss_rules();
const RuleTable& embedding_rules();
const RuleTable& normalization_rules();
const RuleTable& batch_norm_rules();
const RuleTable& convolution_rules();
const RuleTable& spatial_rules();
const RuleTable& attention_rules();
const RuleTable& recurrent_rules();
const RuleTable& list_rules();
const RuleTable& random_rules();
const RuleTable& storage_rules();
const RuleTable& indexing_rules();
const RuleTable& advanced_indexing_rules();
const RuleTable& own_dimension_rules();
const RuleTable& joining_rules();
const RuleTable& padding_rules();
const RuleTable& statistics_rules();
const RuleTable& extremes_rules();
const RuleTable& strided_view_rules();
const RuleTable& searching_rules();

/// The order in which the results' dimensions are the first argument's, of an operator that does no
/// more than permute them or convert the values; nothing for others.
std::optional<std::vector<int64_t>> dimension_order(const Call& call);

/// Where a dimension, what a weight makes of `n_inputs` values, is seen as [parts, heads, size] or
/// as [parts, n_inputs], the number of parts: what is fused in it. Else 0.
int64_t fused_parts(at::IntArrayRef in, at::IntArrayRef out, int64_t dim, int64_t n_inputs);

/// Letters 0, 1, ... for the dimensions of a tensor.
Letters letters(int64_t n_dims, int first = 0);

/// Whether an operator is told strides, which are those of the logical tensor: its rule is asked
/// even if nothing is split.
bool takes_strides(const Operator& op);

/// Whether an operator works element by element.
bool is_pointwise(const Operator& op);

/// Whether sequence parallelism splits this sum, [batch, sequence, features], instead of making it
/// whole.
bool is_split_along_sequence(at::IntArrayRef sizes, const Placements& placements, const Mesh& mesh);

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

/// Whether the terms of a sum of one type may be converted to another before they are added: those
/// of whole numbers that become floats, or of floats that lose digits, may not.
bool adds_up_in(at::ScalarType from, at::ScalarType to);

/// Whether numbers of this type have so little range that what is computed with the terms of a sum
/// may well overflow where the sum does not: it is made first.
inline bool may_overflow(at::ScalarType type) { return type == at::kHalf; }

/// A reduction over a dimension that must be whole.
std::optional<Plan> reduced_along_dim(const Call& call);

/// A plan that passes sums on.
std::optional<Plan> view_by_factors(const Call& call, Factors factors);

/// Whether an output is partial over `dim` because a factor that is reduced is split.
bool is_reduced_over(const Call& call, const Plan& plan, const OutputPlan& output, Mesh::Dim dim);

/// Factors with the inputs said by the names of their arguments; those that a call leaves out are
/// skipped. Nothing, where the call has a tensor that is not named or of other dimensions.
std::optional<Factors> named_factors(
    const Call& call, const std::vector<std::pair<std::string_view, Letters>>& inputs,
    std::vector<Letters> outputs);

/// In how many parts the arguments split a factor.
int64_t parts_of(const Call& call, const Factors& factors, int factor);

/// Whether the parts of a factor are cut at the `n` equal stretches that it consists of, such as
/// the groups of channels.
bool splits_evenly(const Call& call, const Factors& factors, int factor, int64_t n);

/// Whether each rank has some of a factor of `size`: kernels that take no empty dimension need it.
bool all_ranks_hold(const Call& call, const Factors& factors, int factor, int64_t size);

/// An output that every rank has, whatever the factors say of it.
void make_whole(OutputPlan& output);

/// Runs an operator whose kernels take nothing else than contiguous tensors, and do not always say
/// so: what was moved may lie otherwise.
void run_on_contiguous(const Operator& op, torch::jit::Stack& stack, const Mesh& mesh);

/// An argument of this name, if there is one, differs for the local call.
void set_argument(const Call& call, Plan& plan, std::string_view name, c10::IValue value);

}  // namespace redco::sharding
