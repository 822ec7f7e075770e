// Redistributes local tensors from one placement to another, with the collective that moves the
// fewest bytes.

#include "sharded_tensor.h"
#include "split.h"

#include <redco/error.h>

#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <vector>

namespace redco::sharding {

namespace {

at::Tensor gather(const at::Tensor& part, const Split& split, Group& group) {
  return split.joined(group.all_gather(split.padded(part).contiguous()));
}

at::Tensor reduce_scatter(const at::Tensor& whole, const Split& split, ReduceOp op, Group& group) {
  return split.unpadded(group.reduce_scatter(split.parts(whole), op), group.rank());
}

at::Tensor exchange(const at::Tensor& part, const Split& from, const Split& to, Group& group) {
  // Pads both dimensions, so that all pieces have the same size.
  at::Tensor received = group.all_to_all(to.parts(from.padded(part)));
  std::vector<at::Tensor> rows;
  for (int64_t rank = 0; rank < received.size(0); ++rank)
    rows.push_back(from.padded(from.unpadded(to.unpadded(received[rank], group.rank()), rank)));
  return from.joined(at::stack(rows));
}

// Redistributes over one mesh dimension. `sizes` are the sizes before the dimension's group splits
// them.
at::Tensor change(const at::Tensor& local, at::IntArrayRef sizes, const Placement& from,
                  const Placement& to, Group& group) {
  auto split = [&](const Placement& placement) {
    return Split(placement, sizes[size_t(placement.dim)], group.size());
  };
  if (from == to) return local;
  if (from.is_replicated() && to.is_sharded()) return split(to).part(local, group.rank());
  if (from.is_replicated())
    return to.op == ReduceOp::sum && group.rank() > 0 ? at::zeros(local.sizes(), local.options())
                                                      : local;
  if (from.is_partial() && to.is_replicated())
    return group.all_reduce(local.clone(at::MemoryFormat::Contiguous), from.op);
  if (from.is_partial() && to.is_sharded()) return reduce_scatter(local, split(to), from.op, group);
  if (from.is_sharded() && to.is_replicated()) return gather(local, split(from), group);
  if (from.is_sharded() && to.is_sharded() && from.dim != to.dim)
    return exchange(local, split(from), split(to), group);
  at::Tensor whole = change(local, sizes, from, Placement::replicate(), group);
  return change(whole, sizes, Placement::replicate(), to, group);
}

// Orders the steps. A step that shrinks the tensor runs first, so that fewer bytes move.
int growth(const Placement& from, const Placement& to) {
  if (from == to) return 0;
  if (from.is_replicated() && to.is_sharded()) return -2;
  if (from.is_partial() && to.is_sharded()) return -1;
  return from.is_sharded() && to.is_replicated() ? 2 : 1;
}

// Whether two splits of one dimension give the same parts in either order: one rank has all, or the
// first splits blocks and the second leaves each rank some whole blocks.
bool commute(const Placement& blocks, const Placement& plain, int64_t size, int64_t n_ranks) {
  if (blocks.is_on_rank() || plain.is_on_rank()) return true;
  return blocks.block > 0 && !plain.is_in_blocks() && plain.grain == 1 &&
         blocks.n_blocks(size) % n_ranks == 0;
}

// Whether two mesh dimensions split the same dimension of the tensor, before or after, and their
// order matters.
bool meet(const Placements& from, const Placements& to, Mesh::Dim a, Mesh::Dim b,
          at::IntArrayRef sizes, const Mesh& mesh) {
  for (const Placement& on_a : {from[a], to[a]})
    for (const Placement& on_b : {from[b], to[b]})
      if (on_a.is_sharded() && on_b.is_sharded() && on_a.dim == on_b.dim &&
          !commute(on_a, on_b, sizes[size_t(on_a.dim)], mesh.size(b)))
        return true;
  return false;
}

// Redistributes a row-major tensor.
at::Tensor redistribute(at::Tensor local, at::IntArrayRef sizes, const Placements& from,
                        const Placements& to, const Mesh& mesh) {
  Placements now = from;
  auto step = [&](Mesh::Dim dim, const Placement& target) {
    Placement& placement = now[dim];
    if (placement == target) return;
    Placements others = now;
    others[dim] = {};
    local = change(local, local_sizes(sizes, others, mesh), placement, target, mesh.group(dim));
    placement = target;
  };
  // A mesh dimension splits the parts of the mesh dimensions before it. While one of these changes,
  // it must be replicated, unless the two commute.
  MeshDims replicated, others;
  std::array<bool, Mesh::n_dims> changes{};
  for (Mesh::Dim dim : Mesh::dims) {
    bool waits = false;
    for (Mesh::Dim outer : Mesh::dims)
      waits |= outer < dim && changes[outer] && meet(from, to, outer, dim, sizes, mesh);
    changes[dim] = waits || from[dim] != to[dim];
    (waits ? replicated : others).push_back(dim);
  }
  for (size_t i = replicated.size(); i-- > 0;) step(replicated[i], Placement::replicate());
  // Always reduces a sum over several dimensions in the same order, so that its bits do not depend
  // on the reader.
  bool is_summed_in_order = std::ranges::count_if(from, &Placement::is_partial) > 1;
  if (!is_summed_in_order)
    std::ranges::stable_sort(others, {}, [&](Mesh::Dim dim) { return growth(from[dim], to[dim]); });
  for (Mesh::Dim dim : others) step(dim, to[dim]);
  for (Mesh::Dim dim : replicated) step(dim, to[dim]);
  return local;
}

}  // namespace

at::Tensor redistribute_local(at::Tensor local, at::IntArrayRef sizes, at::IntArrayRef strides,
                              const Placements& from, const Placements& to, const Mesh& mesh) {
  if (from == to) return local;
  // Collectives read raw memory, in which conj and neg are not applied yet.
  local = local.resolve_conj().resolve_neg();
  Sizes order = memory_order(strides), moved_sizes;
  bool is_expanded = false;
  for (int64_t dim : order) {
    bool is_one = strides[size_t(dim)] == 0 && sizes[size_t(dim)] > 1 &&
                  splitting(from, dim).empty() && splitting(to, dim).empty();
    if (is_one) local = local.narrow(dim, 0, 1);
    is_expanded |= is_one;
    moved_sizes.push_back(is_one ? 1 : sizes[size_t(dim)]);
  }
  local = redistribute(local.permute(order), moved_sizes, permuted(from, order),
                       permuted(to, order), mesh)
              .permute(inverse(order));
  return is_expanded ? local.expand(local_sizes(sizes, to, mesh)) : local;
}

double redistribution_cost(const Placement& from, const Placement& to, double bytes,
                           int64_t n_ranks) {
  auto n = double(n_ranks);
  if (from == to || from.is_replicated()) return 0;
  if (from.is_partial() && to.is_replicated()) return 2 * (n - 1) / n * bytes;
  if (from.is_partial() && to.is_sharded()) return (n - 1) / n * bytes;
  if (from.is_sharded() && to.is_sharded() && from.dim != to.dim) return (n - 1) / n * bytes;
  if (from.is_partial()) return 2 * (n - 1) / n * bytes;  // to another reduction
  return (n - 1) * bytes;                                 // gathered, then split again
}

}  // namespace redco::sharding
