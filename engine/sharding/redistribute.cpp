// From one placement to another, by the collective that moves the fewest bytes.

#include "sharded_tensor.h"

#include <redco/error.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <vector>

namespace redco {

namespace {

// A dimension of a tensor as one group of ranks splits it. Blocks are made a dimension of their
// own, so that what is split is always the one dimension `at`.
class Split {
 public:
  Split(const Placement& placement, int64_t size, int64_t n_ranks)
      : at(placement.dim + 1), dim_(placement.dim), blocks_(placement.blocks) {
    for (int64_t rank = 0; rank < n_ranks; ++rank)
      spans.push_back(span_of(size / blocks_, placement.grain, n_ranks, rank));
    for (const Span& span : spans) longest = std::max(longest, span.length());
    is_even = std::all_of(spans.begin(), spans.end(),
                          [&](const Span& span) { return span.length() == longest; });
  }

  at::Tensor open(const at::Tensor& tensor) const {
    return tensor.unflatten(dim_, {blocks_, tensor.size(dim_) / blocks_});
  }
  at::Tensor close(const at::Tensor& tensor) const { return tensor.flatten(dim_, dim_ + 1); }

  // One rank's piece of an opened whole.
  at::Tensor piece(const at::Tensor& opened, int64_t rank) const {
    const Span& span = spans[size_t(rank)];
    return opened.narrow(at, span.begin, span.length());
  }

  at::Tensor padded(const at::Tensor& piece) const {
    int64_t missing = longest - piece.size(at);
    if (missing == 0) return piece;
    std::vector<int64_t> pad(size_t(2 * (piece.dim() - at)), 0);
    pad.back() = missing;
    return at::constant_pad_nd(piece, pad);
  }

  int64_t at;
  std::vector<Span> spans;
  int64_t longest = 0;
  bool is_even = true;

 private:
  int64_t dim_, blocks_;
};

at::Tensor slice(const at::Tensor& whole, const Split& split, const Group& group) {
  return split.close(split.piece(split.open(whole), group.rank()));
}

at::Tensor joined(const at::Tensor& rows, const Split& split) {
  if (split.is_even) {
    // [n, ..., blocks, length, ...] to [..., blocks, n, length, ...]
    at::Tensor whole = rows.movedim(0, split.at);
    return split.close(whole.flatten(split.at, split.at + 1));
  }
  std::vector<at::Tensor> pieces;
  for (int64_t rank = 0; rank < rows.size(0); ++rank)
    pieces.push_back(rows[rank].narrow(split.at, 0, split.spans[size_t(rank)].length()));
  return split.close(at::cat(pieces, split.at));
}

at::Tensor gather(const at::Tensor& part, const Split& split, Group& group) {
  return joined(group.all_gather(split.padded(split.open(part)).contiguous()), split);
}

// [n, ...]: the padded pieces of all ranks, in order.
at::Tensor pieces(const at::Tensor& whole, const Split& split) {
  at::Tensor opened = split.open(whole);
  if (split.is_even) {
    auto n = int64_t(split.spans.size());
    return opened.unflatten(split.at, {n, split.longest}).movedim(split.at, 0).contiguous();
  }
  std::vector<at::Tensor> rows;
  for (size_t rank = 0; rank < split.spans.size(); ++rank)
    rows.push_back(split.padded(split.piece(opened, int64_t(rank))));
  return at::stack(rows);
}

at::Tensor reduce_scatter(const at::Tensor& whole, const Split& split, ReduceOp op, Group& group) {
  at::Tensor own = group.reduce_scatter(pieces(whole, split), op);
  return split.close(own.narrow(split.at, 0, split.spans[size_t(group.rank())].length()));
}

at::Tensor exchange(const at::Tensor& part, const Split& from, const Split& to, Group& group) {
  // Padded on both dimensions, so that all pieces are alike.
  at::Tensor sent = pieces(from.close(from.padded(from.open(part))), to);
  at::Tensor received = group.all_to_all(sent);  // [n, the opened `to` of a padded `from`]
  received = received.narrow(to.at + 1, 0, to.spans[size_t(group.rank())].length())
                 .flatten(to.at, to.at + 1);  // `to` is closed
  std::vector<at::Tensor> rows;
  for (int64_t rank = 0; rank < received.size(0); ++rank)
    rows.push_back(from.open(received[rank]).narrow(from.at, 0, from.spans[size_t(rank)].length()));
  return from.close(at::cat(rows, from.at));
}

// One mesh dimension's change. `sizes` are those that its group splits.
at::Tensor change(const at::Tensor& local, at::IntArrayRef sizes, const Placement& from,
                  const Placement& to, Group& group) {
  auto split = [&](const Placement& placement) {
    return Split(placement, sizes[size_t(placement.dim)], group.size());
  };
  if (from == to) return local;
  if (from.is_replicated() && to.is_sharded()) return slice(local, split(to), group);
  if (from.is_replicated())
    return to.op == ReduceOp::sum && group.rank() > 0 ? at::zeros_like(local) : local;
  if (from.is_partial() && to.is_replicated())
    return group.all_reduce(local.clone(at::MemoryFormat::Contiguous), from.op);
  if (from.is_partial() && to.is_sharded()) return reduce_scatter(local, split(to), from.op, group);
  if (from.is_sharded() && to.is_replicated()) return gather(local, split(from), group);
  if (from.is_sharded() && to.is_sharded() && from.dim != to.dim)
    return exchange(local, split(from), split(to), group);
  at::Tensor whole = change(local, sizes, from, Placement::replicate(), group);
  return change(whole, sizes, Placement::replicate(), to, group);
}

// What shrinks comes first, so that less is moved; what grows comes last.
int growth(const Placement& from, const Placement& to) {
  if (from == to) return 0;
  if (from.is_replicated() && to.is_sharded()) return -2;
  if (from.is_partial() && to.is_sharded()) return -1;
  return from.is_sharded() && to.is_replicated() ? 2 : 1;
}

// The dp part of a dimension that mp splits too is cut up by mp: it moves only when whole on mp.
bool meet(const Placements& from, const Placements& to) {
  if (from[Mesh::dp] == to[Mesh::dp]) return false;
  for (const Placement& mp : {from[Mesh::mp], to[Mesh::mp]})
    for (const Placement& dp : {from[Mesh::dp], to[Mesh::dp]})
      if (mp.is_sharded() && dp.is_sharded() && mp.dim == dp.dim) return true;
  return false;
}

}  // namespace

at::Tensor redistribute_local(at::Tensor local, at::IntArrayRef sizes, const Placements& from,
                              const Placements& to, const Mesh& mesh) {
  // Collectives read memory, where these are not done yet.
  if (from != to) local = local.resolve_conj().resolve_neg();
  Placements now = from;
  auto step = [&](Mesh::Dim dim, const Placement& target) {
    Placement& placement = now[dim];
    if (placement == target) return;
    Sizes split_sizes(sizes.begin(), sizes.end());
    if (dim == Mesh::mp) split_sizes = local_sizes(sizes, {now[Mesh::dp], {}}, mesh);
    local = change(local, split_sizes, placement, target, mesh.group(dim));
    placement = target;
  };
  if (meet(from, to)) {
    step(Mesh::mp, Placement::replicate());
    step(Mesh::dp, to[Mesh::dp]);
    step(Mesh::mp, to[Mesh::mp]);
  } else if (growth(from[Mesh::dp], to[Mesh::dp]) <= growth(from[Mesh::mp], to[Mesh::mp])) {
    step(Mesh::dp, to[Mesh::dp]);
    step(Mesh::mp, to[Mesh::mp]);
  } else {
    step(Mesh::mp, to[Mesh::mp]);
    step(Mesh::dp, to[Mesh::dp]);
  }
  return local;
}

double redistribution_cost(const Placement& from, const Placement& to, double bytes,
                           int64_t n_ranks) {
  auto n = double(n_ranks);
  if (from == to || from.is_replicated()) return 0;
  if (from.is_partial() && to.is_replicated()) return 2 * (n - 1) / n * bytes;
  if (from.is_partial() && to.is_sharded()) return (n - 1) / n * bytes;
  if (from.is_sharded() && to.is_sharded() && from.dim != to.dim) return (n - 1) / n * bytes;
  if (from.is_partial()) return 2 * (n - 1) / n * bytes;  // to another reduction
  return (n - 1) * bytes;                                 // gathered, and cut again
}

}  // namespace redco
