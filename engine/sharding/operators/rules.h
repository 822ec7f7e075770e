// The rules of operators, and helpers to write them.

#pragma once

#include "split_dimension.h"

#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace redco::sharding {

/// The first factors of rules that number their factors by dimensions [batch, channel, ...].
constexpr int batch = 0, channel = 1;

/// The name without the underscore of in-place operators: "aten::add" for "aten::add_".
std::string_view base_name(std::string_view name);

using RuleTable = std::unordered_map<std::string_view, OperatorFacts>;

/// A row with its cost on GPUs. Passes of LibTorch's kernels on bfloat16 were measured on an H100:
/// they read several times, or not in order. Starts are host times in traces of training on an
/// H200: several kernels are started.
inline OperatorFacts with_cost(OperatorFacts facts, GpuCost cost) {
  facts.gpu = cost;
  return facts;
}

// The rule tables, each defined in the file of its name.
const RuleTable& product_rules();
const RuleTable& quantized_rules();
const RuleTable& pointwise_rules();
const RuleTable& reduction_rules();
const RuleTable& view_rules();
const RuleTable& slicing_rules();
const RuleTable& reshaping_rules();
const RuleTable& softmax_rules();
const RuleTable& loss_rules();
const RuleTable& ctc_loss_rules();
const RuleTable& elementwise_loss_rules();
const RuleTable& fused_loss_rules();
const RuleTable& embedding_rules();
const RuleTable& normalization_rules();
const RuleTable& batch_norm_rules();
const RuleTable& convolution_rules();
const RuleTable& spatial_rules();
const RuleTable& attention_rules();
const RuleTable& rotary_rules();
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

/// The order of the first argument's dimensions in the result, for an operator that only permutes
/// dimensions or converts values; nullopt for others.
std::optional<std::vector<int64_t>> dimension_order(const Call& call);

/// The number of matrices fused in a weight (3 for q-k-v), read from a view that reshapes its
/// output to [parts, heads, size] or [parts, n_inputs]; 0 if none.
int64_t fused_parts(at::IntArrayRef in, at::IntArrayRef out, int64_t dim, int64_t n_inputs);

/// The dimensions that a view to `out` makes of dimension `dim`; none if it joins it to others.
std::vector<int64_t> opened_dimension(at::IntArrayRef in, const std::vector<int64_t>& out,
                                      int64_t dim);

/// The sizes of a view of so many elements, of which one may be -1.
std::vector<int64_t> resolved_sizes(std::vector<int64_t> sizes, int64_t n_elements);

/// Letters `first`, `first` + 1, ... for the dimensions of a tensor.
Letters letters(int64_t n_dims, int first = 0);

/// Whether an operator takes strides as arguments. They are those of the logical tensor, so its
/// rule runs even if nothing is split.
bool takes_strides(const Operator& op);

/// Whether an operator works on lists of tensors, as those of optimizers do.
bool is_of_lists(const Operator& op);

/// Returns how an operator of this name treats rows that are at experts.
AtExperts at_experts(const std::string& name, bool is_pointwise);

/// Whether an operator works element by element.
bool is_pointwise(const Operator& op);

/// Whether sequence parallelism reduce-scatters this partial sum, [batch, sequence, features],
/// along the sequence instead of all-reducing it.
bool is_split_along_sequence(at::IntArrayRef sizes, const Placements& placements, const Mesh& mesh);

/// Factors of a broadcasting operator: one for each dimension of the result; a dimension of size 1
/// that is broadcast has none. Nullopt if an argument does not broadcast to `sizes`.
std::optional<Factors> pointwise_factors(const Call& call, at::IntArrayRef sizes);

/// A plan for a product, element by element, with the first argument.
std::optional<CallPlan> multiply(const Call& call);

/// The dimensions that a call reduces over.
struct Reduction {
  std::vector<int64_t> dims;  ///< reduced dimensions
  bool keeps = false;         ///< keepdim
};
Reduction reduction_of(const Call& call);
/// Nullopt if an argument for the result does not have the result's dimensions.
std::optional<Factors> reduction_factors(const Call& call, const Reduction& reduction, ReduceOp op);
/// The mesh dimensions over which a plan's results are partial. Marks these results as replicated
/// in the plan; its `run` must reduce them.
MeshDims reduced_over(CallPlan& plan);

/// Whether partial sums of type `from` may be converted to `to` before they are reduced. Not from
/// integers to floats, nor to floats of lower precision.
bool adds_up_in(at::ScalarType from, at::ScalarType to);

/// Whether a type has so small a range that a computation with the terms of a sum may overflow
/// where the sum itself does not. Such sums are reduced first.
inline bool may_overflow(at::ScalarType type) { return type == at::kHalf; }

/// Whether an operator may run on the terms of a sum. All terms must have the type of the result.
/// Unless the operator only moves values, terms must not round or overflow in this type.
bool works_on_terms(const Call& call, bool only_moves);

/// Sets the size argument of the local call, and the result's logical sizes, from `sizes`.
void keep_local_sizes(const Call& call, CallPlan& plan, const char* argument,
                      const std::vector<int64_t>& sizes);

/// A plan for a reduction over a dimension that must not be split.
std::optional<CallPlan> reduced_along_dim(const Call& call);

/// A plan by factors that also keeps partial sums partial.
std::optional<CallPlan> view_by_factors(const Call& call, Factors factors);

/// Whether an output is partial over `dim` because a reduced factor is split.
bool is_reduced_over(const Call& call, const CallPlan& plan, const OutputPlan& output,
                     Mesh::Dim dim);

/// Factors with the inputs given by argument name; arguments missing from the call are skipped.
/// Nullopt if the call has a tensor that is not named or has other dimensions.
std::optional<Factors> named_factors(
    const Call& call, const std::vector<std::pair<std::string_view, Letters>>& inputs,
    std::vector<Letters> outputs);

/// The number of parts that the arguments' placements split a factor into.
int64_t parts_of(const Call& call, const Factors& factors, int factor);

/// Whether a factor that consists of `n` equal stretches, such as groups of channels, is split
/// between them only.
bool splits_evenly(const Call& call, const Factors& factors, int factor, int64_t n);

/// Whether each rank holds a part of a factor of `size`. Needed for kernels that reject empty
/// dimensions.
bool all_ranks_hold(const Call& call, const Factors& factors, int factor, int64_t size);

/// Makes an output replicated, whatever the factors say.
void make_whole(OutputPlan& output);

/// Runs an operator whose kernels work only on contiguous tensors, and do not all check this, on
/// contiguous copies: redistributed tensors may have another memory order.
void run_on_contiguous(const Operator& op, torch::jit::Stack& stack, const Mesh& mesh);

/// Sets a named argument for the local call, if the operator has it.
void set_argument(const Call& call, CallPlan& plan, std::string_view name, c10::IValue value);

}  // namespace redco::sharding
