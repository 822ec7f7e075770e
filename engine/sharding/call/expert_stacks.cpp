// Stacks of experts' weights, which are split between experts.

#include "expert_stacks.h"

#include "../tensor/gathered_view.h"
#include "../tensor/routing.h"

#include <ATen/ops/stack.h>

#include <memory>
#include <utility>
#include <vector>

namespace redco::sharding {

namespace {

using torch::jit::Stack;

// Whether only ep splits the first dimension.
bool is_split_by_experts(const TensorArgument& argument) {
  return argument.tensor.dim() > 1 && argument.placements[Routing::ep] == Placement::shard(0) &&
         splitting(argument.placements, 0).size() == 1;
}

// Unbinds a stack that is split between experts: each result is on one rank.
void unbind(const Call& call, Stack* stack) {
  const TensorArgument& argument = call.tensors[0];
  const int64_t n = argument.tensor.size(0), n_ranks = call.mesh->size(Routing::ep);
  const Span own = span_of(n, 1, n_ranks, call.mesh->coordinate(Routing::ep));
  const at::Tensor& local = argument.local();
  Geometry geometry = geometry_of(argument.tensor);
  geometry.sizes.erase(geometry.sizes.begin());
  geometry.strides.erase(geometry.strides.begin());
  c10::List<at::Tensor> list;
  for (int64_t i = 0; i < n; ++i) {
    Placements placements = argument.placements;
    placements = shifted(placements, 0, -1);
    placements[Routing::ep] = Placement::on_rank(Routing::rank_of(i, n, n_ranks));
    const bool is_here = own.begin <= i && i < own.end;
    at::Tensor part = is_here ? local.select(0, i - own.begin)
                              : local.new_empty(local.sizes().slice(1)).narrow(0, 0, 0);
    at::Tensor weight = wrap(part, placements, call.mesh, geometry);
    sharded_impl(weight)->set_gathered_view(
        std::make_shared<GatheredView>(call, size_t(i), argument.placements));
    geometry.offset += argument.tensor.stride(0);
    list.push_back(weight);
  }
  torch::jit::drop(*stack, call.arguments.size());
  stack->push_back(std::move(list));
}

bool are_in_order(const Call& call) {
  const auto n = int64_t(call.tensors.size());
  for (int64_t i = 0; i < n; ++i) {
    const TensorArgument& argument = call.tensors[size_t(i)];
    Placements others = argument.placements, first = call.tensors[0].placements;
    others[Routing::ep] = first[Routing::ep] = {};
    const bool is_there = argument.placements[Routing::ep] ==
                          Placement::on_rank(Routing::rank_of(i, n, call.mesh->size(Routing::ep)));
    if (!is_there || others != first) return false;
  }
  return true;
}

// Stacks weights that are on the ranks of their experts, such as gradients.
void stack_weights(const Call& call, Stack* stack) {
  std::vector<at::Tensor> own;
  const auto n = int64_t(call.tensors.size());
  for (const TensorArgument& argument : call.tensors)
    if (argument.placements[Routing::ep].rank == call.mesh->coordinate(Routing::ep))
      own.push_back(argument.local());
  std::vector<int64_t> sizes = call.tensors[0].sizes().vec();
  sizes.insert(sizes.begin(), n);
  Placements placements = shifted(call.tensors[0].placements, 0, 1);
  placements[Routing::ep] = Placement::shard(0);
  const at::Tensor& first = call.tensors[0].local();
  const at::Tensor local =
      own.empty() ? first.new_empty(local_sizes(sizes, placements, *call.mesh)) : at::stack(own);
  torch::jit::drop(*stack, call.arguments.size());
  stack->push_back(wrap(local, placements, call.mesh, contiguous_geometry(sizes)));
}

}  // namespace

bool run_on_expert_stack(const Call& call, Stack* stack) {
  if (call.integer("dim", 0) != 0) return false;
  if (call.op.at_experts == AtExperts::unbind && is_split_by_experts(call.tensors[0])) {
    unbind(call, stack);
    return true;
  }
  if (call.op.at_experts == AtExperts::stack && are_in_order(call)) {
    stack_weights(call, stack);
    return true;
  }
  return false;
}

}  // namespace redco::sharding
