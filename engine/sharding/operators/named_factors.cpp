// Helpers for rules of operators with many optional arguments, which are found by name.

#include "rules.h"

#include <algorithm>

namespace redco::sharding {

namespace {

// The placement that splits a factor in some argument over one mesh dimension; null if none.
const Placement* split_of(const Call& call, const Factors& factors, int factor,
                          Mesh::Dim mesh_dim) {
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    const Placement& placement = call.tensors[i].placements[mesh_dim];
    if (placement.is_sharded() && factors.inputs[i][size_t(placement.dim)] == factor)
      return &placement;
  }
  return nullptr;
}

}  // namespace

std::optional<Factors> named_factors(
    const Call& call, const std::vector<std::pair<std::string_view, Letters>>& inputs,
    std::vector<Letters> outputs) {
  Factors factors;
  factors.outputs = std::move(outputs);
  for (const TensorArgument& argument : call.tensors) {
    const std::string& name = call.op.schema().arguments()[argument.argument].name();
    auto found = std::find_if(inputs.begin(), inputs.end(),
                              [&](const auto& input) { return input.first == name; });
    if (found == inputs.end() || int64_t(found->second.size()) != argument.tensor.dim())
      return std::nullopt;
    factors.inputs.push_back(found->second);
  }
  return factors;
}

int64_t parts_of(const Call& call, const Factors& factors, int factor) {
  int64_t parts = 1;
  for (Mesh::Dim mesh_dim : Mesh::dims)
    if (split_of(call, factors, factor, mesh_dim)) parts *= call.mesh->size(mesh_dim);
  return parts;
}

bool splits_evenly(const Call& call, const Factors& factors, int factor, int64_t n) {
  for (Mesh::Dim mesh_dim : Mesh::dims)
    if (const Placement* placement = split_of(call, factors, factor, mesh_dim))
      if (placement->is_in_blocks() || placement->grain > 1 || placement->is_on_rank())
        return false;
  return n % parts_of(call, factors, factor) == 0;
}

bool all_ranks_hold(const Call& call, const Factors& factors, int factor, int64_t size) {
  for (Mesh::Dim mesh_dim : Mesh::dims)
    if (const Placement* placement = split_of(call, factors, factor, mesh_dim)) {
      if (placement->is_on_rank()) return false;
      const int64_t n_ranks = call.mesh->size(mesh_dim);
      size = placement->lengths ? std::min(placement->part_length(size, n_ranks, 0),
                                           placement->part_length(size, n_ranks, n_ranks - 1))
                                : placement->block_length(size) / placement->grain / n_ranks;
    }
  return size > 0;
}

void make_whole(OutputPlan& output) {
  output.placements = {};
  output.sizes.clear();
}

void run_on_contiguous(const Operator& op, torch::jit::Stack& stack, const Mesh&) {
  for (c10::IValue& value : stack)
    if (value.isTensor() && value.toTensor().defined()) value = value.toTensor().contiguous();
  op.handle.callBoxed(&stack);
}

void set_argument(const Call& call, CallPlan& plan, std::string_view name, c10::IValue value) {
  if (int index = call.index_of(name); index >= 0)
    plan.arguments.emplace_back(size_t(index), std::move(value));
}

}  // namespace redco::sharding
