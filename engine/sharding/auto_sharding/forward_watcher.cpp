// Decides the placements of parameters over mp while a forward pass runs on stand-ins.

#include "forward_watcher.h"

#include "../operators/rules.h"

#include <redco/sharding.h>

#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <sstream>
#include <string_view>

namespace redco::sharding {

namespace {

constexpr Mesh::Dim mp = Mesh::mp;

void keep_whole(TracedParameter& parameter, std::string reason) {
  parameter.placement = Placement::replicate();
  parameter.reason = std::move(reason);
}

// Returns the lengths of the pieces that an operator splits its argument into. Empty if it makes
// pieces of one length that does not divide the argument.
std::vector<int64_t> logical_pieces(const Call& call) {
  if (const c10::IValue* sizes = call.find("split_sizes")) return sizes->toIntVector();
  int64_t dim = call.integer("dim", 0), whole = call.tensors[0].tensor.size(dim);
  if (call.op.name == "aten::glu") return {whole / 2, whole / 2};
  if (call.op.name == "aten::unbind") return std::vector<int64_t>(size_t(whole), 1);
  const c10::IValue* size = call.find("split_size");
  if (!size || !size->isInt() || size->toInt() <= 0 || whole % size->toInt() != 0) return {};
  return std::vector<int64_t>(size_t(whole / size->toInt()), size->toInt());
}

// Returns the placement that splits each part fused in a weight; `pieces` are the lengths of the
// parts in its output. Whole if the weight has no such parts.
Placement split_parts(const Placement& now, int64_t n_outputs, const std::vector<int64_t>& pieces) {
  auto n = int64_t(pieces.size());
  if (n < 2 || now.is_in_blocks()) return {};
  bool is_even = std::ranges::adjacent_find(pieces, std::not_equal_to<>()) == pieces.end();
  if (is_even) return n_outputs % n == 0 ? Placement::shard(now.dim, n_outputs / n) : Placement();
  bool is_all = std::accumulate(pieces.begin(), pieces.end(), int64_t{0}) == n_outputs;
  return is_all ? Placement::shard_blocks(now.dim, pieces) : Placement();
}

// Returns the same split, but between units of the shortest part's length, such as the keys of a
// few heads that the ranks do not divide. Whole if the longest part has fewer units than ranks.
Placement split_between_units(const Placement& now, int64_t n_ranks) {
  if (!now.lengths || now.grain > 1) return {};
  int64_t unit = std::ranges::min(*now.lengths);
  bool is_divided = unit > 0 && std::ranges::all_of(*now.lengths, [&](int64_t length) {
                      return length % unit == 0;
                    });
  if (!is_divided || unit == 1 || std::ranges::max(*now.lengths) / unit < n_ranks) return {};
  return Placement::shard_blocks(now.dim, *now.lengths, unit);
}

// Returns the same split, but of each block between the heads that a view opens it to. Some ranks
// then hold one head more than others. Whole if there are fewer heads than ranks.
Placement split_between_heads(const Placement& now, int64_t block,
                              const std::vector<int64_t>& opened, int64_t n_ranks) {
  if (now.lengths || now.grain > 1) return {};
  int64_t inner = c10::multiply_integers(opened);
  for (int64_t length : opened) {
    const bool is_block = inner == block;
    inner /= length;
    if (is_block && inner > 1 && length >= n_ranks)
      return Placement::shard(now.dim, now.block, inner);
  }
  return {};
}

// Whether the argument is split inside a head, which a view may do. Attention cannot keep such a
// split.
bool splits_a_head(const Call& call, const TensorArgument& argument) {
  const Placement& now = argument.placements[mp];
  return call.op.facts.has_heads && now.is_sharded() && now.dim + 1 == argument.tensor.dim();
}

// Whether a norm of the argument needs sums over this split of it: heads with norms of their
// elements need none.
bool splits_norm(const Call& call, const TensorArgument& argument, const Placement& target) {
  if (!call.op.facts.normalizes) return false;
  const auto n = int64_t(call.find("normalized_shape")->toIntVector().size());
  return target.dim >= argument.tensor.dim() - n;
}

constexpr const char* one_holds_shortest =
    "split along its outputs, each of the parts fused in it; the shortest are on one rank each, "
    "and "
    "their outputs are gathered";

// Returns the correction of a weight that is split into parts of heads.
ForwardWatcher::Correction between_heads(const Placement& now, int64_t n_ranks) {
  Placement placement = split_between_units(now, n_ranks);
  return {placement, placement.is_sharded() ? one_holds_shortest
                                            : "whole: its parts would be parts of attention heads"};
}

// Whether a result is split: the output of a product, or the gradient that a fused loss returns
// with its sum.
bool shows_split(const CallPlan& plan) {
  return std::any_of(plan.outputs.begin(), plan.outputs.end(),
                     [](const auto& output) { return output.placements[mp].is_sharded(); });
}

// Whether a result is a partial sum.
bool sums(const CallPlan& plan) {
  return std::any_of(plan.outputs.begin(), plan.outputs.end(),
                     [](const auto& output) { return output.placements[mp].is_partial(); });
}

// Describes the operation on a tensor split along `dim` that needs all of it.
std::string why_gathered(const Call& call, at::IntArrayRef sizes, int64_t dim, int64_t n_ranks) {
  std::ostringstream text;
  if (call.op.name == "aten::unbind") {
    text << "unbound along the dimension that would be split";
  } else if (const c10::IValue* size = call.find("size")) {
    std::vector<int64_t> out = size->toIntVector();
    text << "regrouped as " << at::IntArrayRef(out) << ", ";
    // Finds the output dimension that begins at the element where the split dimension does.
    int64_t before = c10::multiply_integers(sizes.slice(0, size_t(dim))), n = 1;
    size_t to = 0;
    while (to < out.size() && n < before) n *= out[to++];
    if (n != before || to == out.size())
      text << "where the dimension that would be split stands behind others in one";
    else if (out[to] % n_ranks != 0)
      text << "which " << n_ranks << " ranks do not divide";
    else
      text << "which cuts through the parts";
  } else {
    text << "split into " << logical_pieces(call).size() << " pieces, which cuts through the parts";
  }
  return text.str();
}

}  // namespace

ForwardWatcher::ForwardWatcher(std::vector<TracedParameter>& parameters,
                               std::shared_ptr<const Mesh> mesh)
    : WithoutValues(std::move(mesh)), parameters_(parameters), n_(this->mesh()->size(mp)) {}

at::Tensor ForwardWatcher::stand_in(int parameter) {
  at::Tensor tensor = whole_like(parameters_[size_t(parameter)].given);
  remember(tensor, origin_of(tensor, parameter));
  return tensor;
}

void ForwardWatcher::before(Call& call) {
  WithoutValues::before(call);
  if (call.op.at_experts == AtExperts::product) note_experts(call);
  bool is_handed_on = call.op.is_view || call.op.facts.passes_through;
  // Decides weights before the biases that are added to their products, because a bias follows its
  // weight.
  for (bool is_weight : {true, false}) {
    for (size_t i = 0; i < call.tensors.size(); ++i) {
      auto seen = origins_.find(call.tensors[i].impl);
      if (seen == origins_.end() || (call.tensors[i].tensor.dim() > 1) != is_weight) continue;
      TracedParameter& parameter = parameters_[size_t(seen->second.parameter)];
      if (!parameter.placement) {
        if (is_handed_on) continue;
        if (is_of_parameters(call)) {
          parameter.reason = "used with other parameters alone: whole";
          continue;
        }
        decide(call, i, parameter);
      }
      lay_out(call, i, parameter);
    }
  }
}

void ForwardWatcher::after(const Call& call, const CallPlan& plan,
                           c10::ArrayRef<c10::IValue> results) {
  WithoutValues::after(call, plan, results);
  // An in-place view gives the tensor other dimensions.
  if (call.op.is_inplace_view) origins_.erase(call.tensors[0].impl);
  bool is_handed_on = call.op.is_view || call.op.facts.passes_through;
  bool is_elementwise = is_handed_on || is_pointwise(call.op);
  Lineage made;
  made.of_whole = comes_of_whole(call);
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    const TensorArgument& argument = call.tensors[i];
    const Placement &now = argument.placements[mp], &target = plan.inputs[i][mp];
    // In a product with a weight only the weight counts: whether a correction made it whole.
    auto seen = origins_.find(argument.impl);
    if (seen != origins_.end() && argument.tensor.dim() > 1 && call.op.facts.is_product)
      made.of_whole =
          parameters_[size_t(seen->second.parameter)].was_corrected && now.is_replicated();
    Lineage& own = lineages_[argument.impl];
    if (now.is_sharded() && target != now) {
      moved_.insert(own.split.begin(), own.split.end());
      if (target.is_replicated() && own.split.size() > 1) moved_together_.insert(own.split);
    }
    if (now.is_sharded() && call.op.facts.regroups) note_view(call, own.split);
    if (now.is_sharded() && target.is_replicated() && call.op.facts.regroups)
      correct(call, i, own.split);
    if (now.is_sharded() && target.is_replicated() && call.op.name == "aten::slice")
      note_slice(call, own.split);
    if (splits_a_head(call, argument) && target.is_replicated())
      for (int weight : own.split) {
        if (parameters_[size_t(weight)].is_fixed()) continue;
        const std::optional<Placement>& placement = parameters_[size_t(weight)].placement;
        corrections_.emplace(weight, between_heads(placement.value_or(Placement()), n_));
      }
    if (now.is_partial() && target.is_replicated()) own.summed = own.split;
    if (!now.is_replicated() && !target.is_replicated())
      made.split.insert(own.split.begin(), own.split.end());
    if (target.is_sharded() &&
        (splits_norm(call, argument, target) || (own.of_norm && is_elementwise)))
      made.of_norm = true;
    if (now.is_sharded()) continue;
    const std::set<int>& summed = now.is_partial() ? own.split : own.summed;
    if (target.is_sharded()) needed_split_.insert(summed.begin(), summed.end());
    if (target.is_replicated() && is_elementwise) made.summed.insert(summed.begin(), summed.end());
  }
  std::set<int> weights;
  for (const TensorArgument& argument : call.tensors) {
    auto seen = origins_.find(argument.impl);
    if (seen != origins_.end() && argument.tensor.dim() > 1) weights.insert(seen->second.parameter);
  }
  const Streams::Lineage stream = streams_.of(call, plan, weights);
  if (call.op.facts.is_product && sums(plan) && results[0].isTensor())
    pairs_.note_sum(weights, results[0].toTensor().numel());
  // A product of two activations, such as attention's scores, of which each rank has a part of the
  // sums.
  if (call.op.facts.is_product && sums(plan) &&
      std::ranges::none_of(call.tensors,
                           [&](const auto& input) { return origins_.contains(input.impl); }))
    moved_.insert(made.split.begin(), made.split.end());
  auto origin = call.tensors.empty() ? origins_.end() : origins_.find(call.tensors[0].impl);
  const bool is_of_weights = is_of_parameters(call);
  const auto keep = [&](const at::Tensor& tensor) {
    note(tensor, made);
    if (tensor.defined() && sharded_impl(tensor)) streams_.note(tensor, stream);
    if (is_handed_on && origin != origins_.end())
      remember(tensor, call.op.is_view ? of_view(origin->second, call.tensors[0].tensor, tensor)
                                       : origin->second);
    else if (is_of_weights)
      remember_made(tensor, call);
  };
  for (const c10::IValue& result : results) {
    if (result.isTensor())
      keep(result.toTensor());
    else if (result.isTensorList())
      std::ranges::for_each(result.toTensorVector(), keep);
  }
}

at::Tensor ForwardWatcher::whole_like(const at::Tensor& tensor) {
  return wrap(whole_meta(tensor), {}, mesh(), dense_geometry(tensor.sizes(), tensor.strides()));
}

void ForwardWatcher::remember(const at::Tensor& tensor, Origin origin) {
  if (!sharded_impl(tensor)) return;
  origins_[tensor.unsafeGetTensorImpl()] = std::move(origin);
  alive_.push_back(tensor);
}

// Whether a call reads parameters alone, such as a weight and its norm. Its result counts as a
// weight, whose placement is decided when it meets the data.
bool ForwardWatcher::is_of_parameters(const Call& call) const {
  const OperatorFacts& facts = call.op.facts;
  if (!facts.rule || facts.is_product || facts.looks_up_rows || call.tensors.empty()) return false;
  return std::ranges::all_of(call.tensors, [&](const TensorArgument& argument) {
    if (!argument.impl) return argument.tensor.dim() == 0;
    return origins_.contains(argument.impl) || of_parameters_.contains(argument.impl);
  });
}

void ForwardWatcher::remember_made(const at::Tensor& tensor, const Call& call) {
  if (!tensor.defined() || !sharded_impl(tensor)) return;
  of_parameters_.insert(tensor.unsafeGetTensorImpl());
  for (const TensorArgument& argument : call.tensors) {
    auto origin = origins_.find(argument.impl);
    if (origin == origins_.end() || argument.sizes() != tensor.sizes()) continue;
    return remember(tensor, origin->second);
  }
}

void ForwardWatcher::note(const at::Tensor& tensor, const Lineage& lineage) {
  if (!tensor.defined() || !sharded_impl(tensor)) return;
  alive_.push_back(tensor);
  Lineage& own = lineages_[tensor.unsafeGetTensorImpl()];
  own = lineage;
  // `split` applies to split and partial tensors only, and `summed` to replicated ones.
  (placements_of(tensor)[mp].is_replicated() ? own.split : own.summed).clear();
}

bool ForwardWatcher::decide_as(TracedParameter& parameter, const TensorArgument& seen,
                               const Placement& wanted, std::string reason) {
  const std::optional<Placement> placement =
      on_parameter(origins_.at(seen.impl), wanted, parameter.given, n_);
  if (!placement) {
    parameter.reason = "used reshaped, so that none of its dimensions can be split: whole";
    return false;
  }
  int64_t size = parameter.given.size(placement->dim);
  int64_t longest = placement->lengths ? std::ranges::max(*placement->lengths) / placement->grain
                                       : placement->block_length(size);
  if (longest < n_) {
    parameter.reason = "its dimension " + std::to_string(placement->dim) + " is shorter than the " +
                       std::to_string(n_) + " ranks: whole";
    return false;
  }
  parameter.placement = placement;
  parameter.reason = std::move(reason);
  return true;
}

void ForwardWatcher::decide(Call& call, size_t i, TracedParameter& parameter) {
  const TensorArgument& seen = call.tensors[i];
  if (call.op.facts.looks_up_rows && i == 0) {
    if (decide_as(parameter, seen, Placement::shard(0), "embedding: split along its rows"))
      embeddings_.insert(int(&parameter - parameters_.data()));
    else
      parameter.placement = Placement::replicate();
    return;
  }
  std::optional<CallPlan> plan = call.op.facts.rule ? call.op.facts.rule(call) : std::nullopt;
  if (!plan) {
    parameter.reason = call.op.name + " needs all of it: whole";
    return;
  }
  const Placement& wanted = plan->inputs[i][mp];
  bool is_weight = call.op.facts.is_product && seen.tensor.dim() > 1;
  const bool reads_norm = std::ranges::any_of(
      call.tensors, [&](const TensorArgument& argument) { return is_of_norm(argument); });
  if (is_weight && parameter.adapter) order_adapter(parameter);
  if (is_weight && parameter.adapter && (!parameter.adapter->is_first || !wanted.is_sharded())) {
    follow_weight(parameter);
  } else if (wanted.is_sharded() && !(is_weight && reads_norm)) {
    std::string reason = is_weight && sums(*plan) ? "its input is split: split along its inputs"
                                                  : "follows the tensor it is combined with";
    bool is_own = !parameter.adapter;  // an adapter reads its weight's input
    if (decide_as(parameter, seen, wanted, std::move(reason)) && is_weight && is_own)
      for (const TensorArgument& input : call.tensors)
        if (input.placements[mp].is_sharded())
          pairs_.add(lineages_[input.impl].split, int(&parameter - parameters_.data()));
  } else if (is_weight && comes_of_whole(call)) {
    // Splitting it would save no reduction and cost a gather.
    keep_whole(parameter, "its input comes from outputs that stay whole: whole");
  } else if (is_weight) {
    split_outputs(call, i, parameter);
  } else {
    parameter.reason =
        "not the weight of a product or an embedding, and used with whole tensors: whole";
  }
}

std::set<int> ForwardWatcher::suspects() const {
  std::set<int> all = moved_;
  all.insert(needed_split_.begin(), needed_split_.end());
  all.insert(stacks_.begin(), stacks_.end());
  const std::set<int> of_pairs = pairs_.suspects();
  all.insert(of_pairs.begin(), of_pairs.end());
  return all;
}

std::set<int> ForwardWatcher::partners() const {
  std::set<int> all = pairs_.first_weights();
  all.insert(embeddings_.begin(), embeddings_.end());
  return all;
}

std::set<std::set<int>> ForwardWatcher::moved_together() const {
  std::set<std::set<int>> all = pairs_.suspects_together();
  all.insert(moved_together_.begin(), moved_together_.end());
  return all;
}

bool ForwardWatcher::comes_of_whole(const Call& call) const {
  return std::any_of(call.tensors.begin(), call.tensors.end(), [&](const auto& argument) {
    auto found = lineages_.find(argument.impl);
    return found != lineages_.end() && found->second.of_whole;
  });
}

// A norm of split features costs little, so it may keep them split for heads. It does not decide
// how later operators are split: products gather such an input, as if the norm had gathered it.
bool ForwardWatcher::is_of_norm(const TensorArgument& argument) const {
  auto found = lineages_.find(argument.impl);
  return found != lineages_.end() && found->second.of_norm && argument.placements[mp].is_sharded();
}

// Splits the dimension that shows up in the result, if only sums and norms need to move.
void ForwardWatcher::split_outputs(Call call, size_t i, TracedParameter& parameter) {
  parameter.reason = call.op.name + " can split none of its dimensions: whole";
  for (TensorArgument& argument : call.tensors)
    if (argument.placements[mp].is_partial() || is_of_norm(argument)) argument.placements[mp] = {};
  TensorArgument& argument = call.tensors[i];
  for (int64_t dim = argument.tensor.dim(); dim-- > 0;) {
    argument.placements[mp] = Placement::shard(dim);
    std::optional<CallPlan> plan = call.op.facts.rule(call);
    if (!plan || !plan->inputs[i][mp].is_sharded() || !shows_split(*plan)) continue;
    if (decide_as(parameter, argument, Placement::shard(dim),
                  "its input is whole: split along its outputs")) {
      const int weight = int(&parameter - parameters_.data());
      streams_.add_source(weight);
      if (call.op.name == "aten::bmm" && dim > 0) stacks_.insert(weight);
      int64_t n_inputs = 0;
      for (size_t k = 0; k < call.tensors.size(); ++k)
        if (k != i) n_inputs = std::max(n_inputs, call.tensors[k].tensor.numel());
      const int64_t n_outputs = argument.tensor.size(dim);
      pairs_.add_source(weight, n_inputs, n_outputs < argument.tensor.numel() / n_outputs);
      return;
    }
  }
}

// Of the two matrices of an adapter, the one that is used first is the first.
void ForwardWatcher::order_adapter(TracedParameter& parameter) {
  TracedParameter::Adapter& adapter = *parameter.adapter;
  TracedParameter& other = parameters_[size_t(adapter.other)];
  adapter.was_seen = true;
  if (other.placement || other.adapter->was_seen) return;
  adapter.is_first = true;
  other.adapter->is_first = false;
}

// The output of an adapter must have the placement of the adapted weight's output: split, or a
// partial sum. The low-rank dimension is never split.
void ForwardWatcher::follow_weight(TracedParameter& parameter) {
  const TracedParameter::Adapter& adapter = *parameter.adapter;
  const std::optional<Placement>& weight = parameters_[size_t(adapter.weight)].placement;
  const std::optional<Placement>& first = parameters_[size_t(adapter.other)].placement;
  bool splits_inputs = first && first->is_sharded();
  if (adapter.is_first || splits_inputs || !weight || !weight->is_sharded()) {
    keep_whole(parameter, "of an adapter: whole");
    return;
  }
  parameter.placement = weight;
  parameter.placement->dim = adapter.dim;
  parameter.reason = "of an adapter: split like the outputs of the adapted weight";
}

// Replaces the argument by the parameter in its decided placement.
void ForwardWatcher::lay_out(Call& call, size_t i, const TracedParameter& parameter) {
  TensorArgument& argument = call.tensors[i];
  if (!parameter.placement || !parameter.placement->is_sharded()) return;
  if (!argument.placements[mp].is_replicated()) return;
  const Origin origin = origins_.at(argument.impl);
  const std::optional<Placement> placement =
      on_tensor(origin, *parameter.placement, parameter.given, n_);
  if (!placement) return;
  Placements placements;
  placements[Mesh::mp] = *placement;
  Sizes sizes = local_sizes(argument.sizes(), placements, *mesh());
  at::IntArrayRef strides = argument.tensor.strides();
  at::Tensor local = at::empty_strided(sizes, dense_geometry(sizes, strides).strides,
                                       argument.impl->local().options());
  Geometry geometry = dense_geometry(argument.sizes(), strides);
  argument.tensor = wrap(local, placements, mesh(), geometry);
  argument.impl = sharded_impl(argument.tensor);
  argument.placements = placements;
  remember(argument.tensor, origin);
  // A weight's adapter gets the weight's corrections.
  bool follows = parameter.adapter && !parameter.adapter->is_first;
  lineages_[argument.impl].split = {follows ? parameter.adapter->weight : origin.parameter};
}

// Notes a view that opens a dimension: a split of one of the new dimensions is a split in blocks of
// the weight's dimension.
void ForwardWatcher::note_view(const Call& call, const std::set<int>& weights) {
  const c10::IValue* size = call.find("size");
  if (!size) return;
  const TensorArgument& argument = call.tensors[0];
  const std::vector<int64_t> opened =
      opened_dimension(argument.sizes(), size->toIntVector(), argument.placements[mp].dim);
  for (int weight : weights) {
    const TracedParameter& parameter = parameters_[size_t(weight)];
    const std::optional<Placement>& now = parameter.placement;
    if (!now || !now->is_sharded()) continue;
    int64_t block = parameter.given.size(now->dim);
    if (block != c10::multiply_integers(opened)) continue;
    for (int64_t length : opened) {
      if (length >= n_)
        splits_in_views_[weight].push_back(
            Placement::shard(now->dim, block == parameter.given.size(now->dim) ? 0 : block));
      block /= length;
    }
  }
}

void ForwardWatcher::note_experts(const Call& call) {
  constexpr size_t first = 2;
  const auto n = int64_t(call.tensors.size() - first);
  for (int64_t i = 0; i < n; ++i) {
    const TensorArgument& weight = call.tensors[first + size_t(i)];
    auto origin = origins_.find(weight.impl);
    if (origin == origins_.end()) continue;
    const at::Tensor& given = parameters_[size_t(origin->second.parameter)].given;
    const int64_t n_in_it = given.numel() / std::max<int64_t>(weight.tensor.numel(), 1);
    if (n_in_it != 1 && (n_in_it != n || given.size(0) % n != 0)) continue;
    const ExpertWeight use{n_in_it == 1 ? i : -1, n};
    auto [known, is_new] = experts_.emplace(origin->second.parameter, use);
    if (!is_new && (known->second.number != use.number || known->second.n_experts != n))
      known->second.n_experts = 0;
  }
}

void ForwardWatcher::note_slice(const Call& call, const std::set<int>& weights) {
  const int64_t dim = call.dims("dim", call.tensors[0].tensor.dim())->front();
  const int64_t size = call.tensors[0].sizes()[size_t(dim)];
  if (call.tensors[0].placements[mp].dim != dim) return;
  const int64_t step = call.integer("step", 1);
  for (int weight : weights) {
    Cuts& cuts = cuts_[weight];
    cuts.size = size;
    cuts.step = std::lcm(cuts.step, step);
    if (step > 1) continue;
    for (const char* name : {"start", "end"}) {
      int64_t position = call.integer(name, name == std::string_view("end") ? size : 0);
      cuts.positions.insert(
          std::clamp<int64_t>(position < 0 ? position + size : position, 0, size));
    }
  }
}

// Corrects weights that slices take parts of: splits them between the parts, or splits each part.
void ForwardWatcher::correct_sliced(std::map<int, Correction>& all) const {
  for (const auto& [weight, cuts] : cuts_) {
    const TracedParameter& parameter = parameters_[size_t(weight)];
    const std::optional<Placement>& now = parameter.placement;
    if (parameter.is_fixed() || !now || !now->is_sharded() || now->lengths) continue;
    if (parameter.given.size(now->dim) != cuts.size) continue;
    std::set<int64_t> positions = cuts.positions;
    for (int64_t at = 0; at <= cuts.size; at += now->block_length(cuts.size)) positions.insert(at);
    std::vector<int64_t> lengths;
    for (auto at = positions.begin(); std::next(at) != positions.end(); ++at)
      lengths.push_back(*std::next(at) - *at);
    const bool is_divided = std::ranges::all_of(lengths, [&](int64_t length) {
      return length % cuts.step == 0 && length / cuts.step >= n_;
    });
    Placement placement =
        Placement::shard_blocks(now->dim, lengths, std::lcm(now->grain, cuts.step));
    if (!is_divided || placement == *now) continue;
    std::ostringstream reason;
    reason << "split along its outputs, each of the " << lengths.size() << " parts that are sliced";
    if (lengths.size() == 1) reason.str("split along its outputs between those that are sliced");
    all.emplace(weight, Correction{placement, reason.str()});
  }
}

// Corrects weights whose split outputs are reshaped in a way that breaks the split.
void ForwardWatcher::correct(const Call& call, size_t i, const std::set<int>& weights) {
  const TensorArgument& argument = call.tensors[i];
  int64_t split_dim = argument.placements[mp].dim;
  const c10::IValue* regrouped = call.find("size");
  std::vector<int64_t> pieces = regrouped ? std::vector<int64_t>() : logical_pieces(call);
  int64_t size = argument.sizes()[size_t(split_dim)];
  for (int weight : weights) {
    const TracedParameter& parameter = parameters_[size_t(weight)];
    const at::Tensor& given = parameter.given;
    if (!regrouped || given.dim() < 2 || !parameter.placement) continue;
    if (!parameter.placement->is_sharded()) continue;
    int64_t n_inputs = given.numel() / given.size(parameter.placement->dim);
    int64_t n = fused_parts(argument.sizes(), regrouped->toIntVector(), split_dim, n_inputs);
    pieces =
        n > 1 && size % n == 0 ? std::vector<int64_t>(size_t(n), size / n) : std::vector<int64_t>();
  }
  for (int weight : weights) {
    const TracedParameter& parameter = parameters_[size_t(weight)];
    if (parameter.is_fixed() || !parameter.placement || !parameter.placement->is_sharded())
      continue;
    const Placement& now = *parameter.placement;
    Placement placement = split_parts(now, parameter.given.size(now.dim), pieces);
    std::ostringstream reason;
    if (placement.is_sharded()) {
      reason << "split along its outputs, each of the " << pieces.size() << " parts fused in it";
    } else if (placement = split_between_units(now, n_); placement.is_sharded()) {
      reason << one_holds_shortest;
    } else if (regrouped && now.block_length(parameter.given.size(now.dim)) ==
                                argument.placements[mp].block_length(size)) {
      placement = split_between_heads(
          now, argument.placements[mp].block_length(size),
          opened_dimension(argument.sizes(), regrouped->toIntVector(), split_dim), n_);
      if (placement.is_sharded()) reason << "split along its outputs between heads";
    }
    if (placement.is_replicated()) {
      reason << "whole: its outputs, " << argument.sizes() << ", are "
             << why_gathered(call, argument.sizes(), split_dim, n_);
    }
    corrections_.emplace(weight, Correction{placement, reason.str()});
  }
}

std::map<int, ForwardWatcher::Correction> ForwardWatcher::corrections() const {
  if (!corrections_.empty()) return corrections_;
  std::map<int, Correction> all;
  correct_sliced(all);
  return all;
}

}  // namespace redco::sharding
