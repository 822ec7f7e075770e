// Finds the cheapest way to split the factors of an operator.

#include "../call/call_plan.h"

#include <redco/error.h>

#include <limits>

namespace redco::sharding {

namespace {

// A choice for one mesh dimension: split a factor, split nothing, or leave partial inputs partial.
struct Choice {
  int factor = -1;
  Placement placement = {};  // of the factor; `dim` is set per tensor
  uint64_t partial = 0;      // inputs that are partial
};

int dim_of(const Letters& letters, int factor) {
  for (size_t dim = 0; dim < letters.size(); ++dim)
    if (letters[dim] == factor) return int(dim);
  return -1;
}

bool has(uint64_t bits, size_t i) { return bits >> i & 1; }

Placement placed(const Choice& choice, const Letters& letters) {
  int dim = dim_of(letters, choice.factor);
  if (dim < 0) return {};
  Placement placement = choice.placement;
  placement.dim = dim;
  return placement;
}

Placement input_placement(const Factors& factors, const Choice& choice, size_t i) {
  if (choice.partial) return has(choice.partial, i) ? choice.placement : Placement{};
  if (choice.factor < 0) return {};
  Placement placement = placed(choice, factors.inputs[i]);
  // Adds an addend of a sum over the ranks on one rank only.
  if (placement.is_replicated() && has(factors.added, i)) {
    for (const Letters& letters : factors.outputs)
      if (dim_of(letters, choice.factor) < 0) return Placement::reduction(factors.reduction);
  }
  return placement;
}

Placement output_placement(const Factors& factors, const Choice& choice, const Letters& letters) {
  if (choice.partial) return choice.placement;
  if (choice.factor < 0) return {};
  Placement placement = placed(choice, letters);
  return placement.is_replicated() ? Placement::reduction(factors.reduction) : placement;
}

std::vector<Choice> choices(const Call& call, const Factors& factors, Mesh::Dim mesh_dim) {
  std::vector<Choice> found;
  uint64_t summed = 0;
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    const Placement& placement = call.tensors[i].placements[mesh_dim];
    if (placement.is_sharded()) {
      int factor = factors.inputs[i][size_t(placement.dim)];
      if (factor >= 0 && !has(factors.whole, size_t(factor)))
        found.push_back({factor, placement, 0});
    }
    if (placement.is_partial()) summed |= uint64_t{1} << i;
  }
  found.emplace_back();  // first, so that equal costs prefer replicated arguments to partial ones
  for (uint64_t set : factors.linear) {
    if (!(set & summed)) continue;
    for (size_t i = 0; i < call.tensors.size(); ++i) {
      if (!has(set & summed, i)) continue;
      const Placement& placement = call.tensors[i].placements[mesh_dim];
      if (placement.op != ReduceOp::sum && !factors.only_moves) continue;
      found.push_back({-1, placement, set});
      break;
    }
  }
  return found;
}

// Returns the bytes of results that a split of a summed factor leaves as partial sums.
double bytes_of_new_sums(const Call& call, const Factors& factors, const Choice& choice,
                         const Sizes& sizes) {
  if (choice.factor < 0 || choice.partial) return 0;
  const double element = double(call.tensors[0].tensor.element_size());
  double bytes = 0;
  for (const Letters& letters : factors.outputs) {
    if (dim_of(letters, choice.factor) >= 0) continue;
    double of_output = element;
    for (int8_t letter : letters)
      if (letter >= 0) of_output *= double(sizes[size_t(letter)]);
    bytes += of_output;
  }
  return bytes;
}

double cost(const Call& call, const Factors& factors, const Choice& choice, Mesh::Dim mesh_dim,
            const Sizes& sizes) {
  // The cost of a collective, in bytes: of two choices that move the same bytes, the one with fewer
  // launches wins.
  constexpr double launch = 1;
  double total = 0, deferred = 0;
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    const TensorArgument& argument = call.tensors[i];
    const Placement& now = argument.placements[mesh_dim];
    Placement target = input_placement(factors, choice, i);
    if (argument.first < int64_t(i)) continue;  // the same tensor moves once
    double bytes = part_bytes(argument, *call.mesh);
    if (now.is_partial() && now == target)
      deferred += redistribution_cost(now, {}, bytes, call.mesh->size(mesh_dim));
    if (now == target) continue;
    double moved = redistribution_cost(now, target, bytes, call.mesh->size(mesh_dim));
    if (argument.is_written) {
      double back_bytes = bytes;
      if (now.is_sharded() && !target.is_sharded()) back_bytes *= double(call.mesh->size(mesh_dim));
      moved += redistribution_cost(target, now, back_bytes, call.mesh->size(mesh_dim)) + launch;
    }
    total += moved + (moved > 0 ? launch : 0);
  }
  // A partial input that stays partial is still reduced later, and so is a new partial sum. If
  // nothing else moves, the input stays partial, because it may be added to others first. But no
  // tensor is moved only to defer the reduction.
  if (total == 0) return 0;
  return total + deferred +
         redistribution_cost(Placement::reduction(ReduceOp::sum), {},
                             bytes_of_new_sums(call, factors, choice, sizes),
                             call.mesh->size(mesh_dim));
}

Choice cheapest(const Call& call, const Factors& factors, Mesh::Dim mesh_dim, const Sizes& sizes) {
  Choice best;
  if (call.mesh->size(mesh_dim) == 1) return best;
  double least = std::numeric_limits<double>::infinity();
  for (const Choice& choice : choices(call, factors, mesh_dim)) {
    double price = cost(call, factors, choice, mesh_dim, sizes);
    if (price >= least) continue;
    least = price;
    best = choice;
  }
  return best;
}

Sizes factor_sizes(const Call& call, const Factors& factors) {
  Sizes sizes;
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    for (size_t dim = 0; dim < factors.inputs[i].size(); ++dim) {
      int factor = factors.inputs[i][dim];
      if (factor < 0) continue;
      if (sizes.size() <= size_t(factor)) sizes.resize(size_t(factor) + 1, -1);
      int64_t& size = sizes[size_t(factor)];
      if (size < 0) size = call.tensors[i].sizes()[dim];  // an `out` argument comes last
    }
  }
  return sizes;
}

}  // namespace

double part_bytes(const TensorArgument& argument, const Mesh& mesh) {
  double bytes = double(argument.tensor.numel()) * double(argument.tensor.element_size());
  for (Mesh::Dim dim : Mesh::dims)
    if (argument.placements[dim].is_sharded()) bytes /= double(mesh.size(dim));
  return bytes;
}

CallPlan plan_by_factors(const Call& call, const Factors& factors) {
  Sizes sizes = factor_sizes(call, factors);
  std::array<Choice, Mesh::n_dims> chosen;
  Placements split;  // of the factors: `dim` is a factor
  for (Mesh::Dim dim : Mesh::dims) {
    chosen[dim] = cheapest(call, factors, dim, sizes);
    int factor = chosen[dim].factor;
    if (factor < 0) continue;
    split[dim] = chosen[dim].placement;
    split[dim].dim = factor;
    MeshDims over = splitting_with(split, dim);
    if (over.size() < 2 || can_split_again(sizes[size_t(factor)], over, split, *call.mesh))
      continue;
    chosen[dim] = {};
    split[dim] = {};
  }

  CallPlan plan;
  plan.inputs.resize(call.tensors.size());
  for (size_t i = 0; i < plan.inputs.size(); ++i)
    for (Mesh::Dim dim : Mesh::dims) plan.inputs[i][dim] = input_placement(factors, chosen[dim], i);
  for (const Letters& letters : factors.outputs) {
    OutputPlan& output = plan.outputs.emplace_back();
    for (Mesh::Dim dim : Mesh::dims)
      output.placements[dim] = output_placement(factors, chosen[dim], letters);
    for (int8_t letter : letters) {
      require(letter < int(sizes.size()), call.op.schema().name(),
              ": a result has a dimension that no argument has");
      output.sizes.push_back(letter < 0 ? -1 : sizes[size_t(letter)]);
    }
  }
  return plan;
}

CallPlan gathered_plan(const Call& call) {
  CallPlan plan;
  plan.inputs.resize(call.tensors.size());
  // Any reader reduces a partial input, so this does not count as a gather.
  for (const TensorArgument& argument : call.tensors)
    for (const Placement& placement : argument.placements)
      plan.is_gathered |= placement.is_sharded();
  return plan;
}

}  // namespace redco::sharding
