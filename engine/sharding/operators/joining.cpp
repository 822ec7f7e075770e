// Rules for cat and stack.

#include "rules.h"

#include <algorithm>

namespace redco::sharding {

namespace {

int64_t joined_dim(const Call& call, int64_t n_dims) { return call.dims("dim", n_dims)->front(); }

// Values are only moved, so the inputs may all be partial together.
Plan moved(const Call& call, Factors factors) {
  if (call.tensors.size() < 64) factors.linear = {(uint64_t{1} << call.tensors.size()) - 1};
  factors.only_moves = true;
  return plan_by_factors(call, factors);
}

bool are_alike(const Call& call) {
  return std::all_of(call.tensors.begin(), call.tensors.end(), [&](const TensorArgument& argument) {
    return argument.sizes() == call.tensors[0].sizes();
  });
}

std::optional<Plan> cat(const Call& call) {
  int64_t n_dims = 0;
  for (const TensorArgument& argument : call.tensors)
    n_dims = std::max(n_dims, argument.tensor.dim());
  int64_t dim = joined_dim(call, n_dims);
  if (call.find("out")) return std::nullopt;
  // Equal tensors split along the joined dimension become blocks of the result; each block stays
  // split.
  bool in_blocks = are_alike(call) && n_dims > 0;
  for (Mesh::Dim i : Mesh::dims) {
    int n_split = 0;
    for (const TensorArgument& argument : call.tensors) {
      const Placement& placement = argument.placements[i];
      if (!placement.is_sharded() || placement.dim != dim) continue;
      ++n_split;
      in_blocks &= placement.block == 0 && placement.grain == 1 &&
                   splitting(argument.placements, dim).size() == 1;
    }
    in_blocks &= n_split == 0 || n_split == int(call.tensors.size());
  }
  Letters all = letters(n_dims);
  Factors factors;
  for (const TensorArgument& argument : call.tensors) {
    Letters own = all;
    if (!in_blocks) own[size_t(dim)] = -1;
    // A one-dimensional empty tensor can be joined to any.
    if (argument.tensor.dim() != n_dims) own = Letters(size_t(argument.tensor.dim()), int8_t(-1));
    factors.inputs.push_back(own);
  }
  if (!in_blocks) all[size_t(dim)] = -1;
  factors.outputs = {all};
  Plan plan = moved(call, std::move(factors));
  if (!in_blocks) return plan;
  OutputPlan& output = plan.outputs[0];
  int64_t size = call.tensors[0].sizes()[size_t(dim)];
  output.sizes[size_t(dim)] = size * int64_t(call.tensors.size());
  for (Placement& placement : output.placements)
    if (placement.is_sharded() && placement.dim == dim)
      placement.block = call.tensors.size() > 1 ? int32_t(size) : 0;
  return plan;
}

std::optional<Plan> stack(const Call& call) {
  if (call.find("out")) return std::nullopt;
  int64_t n_dims = call.tensors[0].tensor.dim();
  Letters all = letters(n_dims), result = all;
  result.insert(result.begin() + joined_dim(call, n_dims + 1), int8_t(-1));
  Factors factors;
  factors.inputs.assign(call.tensors.size(), all);
  factors.outputs = {result};
  return moved(call, std::move(factors));
}

}  // namespace

const RuleTable& joining_rules() {
  static const RuleTable table = {{"aten::cat", cat}, {"aten::stack", stack}};
  return table;
}

}  // namespace redco::sharding
