#pragma once

#include <redco/export.h>
#include <redco/group.h>
#include <redco/mesh.h>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <array>
#include <cstdint>
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

namespace redco {

/// The elements [begin, end) of a dimension.
struct Span {
  int64_t begin = 0, end = 0;
  int64_t length() const { return end - begin; }
};

/// The placement of a tensor on one dimension of the mesh.
struct REDCO_API Placement {
  enum Kind : uint8_t {
    replicated,  ///< every rank holds the full tensor
    sharded,     ///< each rank holds a part of dimension `dim`
    partial,     ///< every rank holds a tensor of full size; the value is their reduction by `op`
  };

  Kind kind = replicated;
  ReduceOp op = ReduceOp::sum;
  int32_t dim = 0;
  /// The dimension consists of blocks of this length, each of which is split; 0: a single block. A
  /// fused query-key-value weight is three blocks, so that each rank holds its heads of all three.
  int32_t block = 0;
  /// The lengths of the blocks if they differ, as of a query-key-value weight with fewer heads for
  /// keys and values than for queries; null: they are as `block` says. `shard_blocks` makes it. A
  /// dimension that is shorter than they are together ends inside of them: see `shard_prefix`.
  const std::vector<int64_t>* lengths = nullptr;
  /// The dimension is split at multiples of this: when two dimensions were merged into one, it is
  /// split between rows of the first.
  int32_t grain = 1;
  /// The rank that holds all of the dimension, of which the others hold nothing; -1: all hold
  /// parts. Along pp it is the stage, which is on rank % n ranks.
  int32_t rank = -1;

  static Placement replicate() { return {}; }
  static Placement shard(int64_t dim, int64_t block = 0, int64_t grain = 1) {
    return {sharded, ReduceOp::sum, int32_t(dim), int32_t(block), nullptr, int32_t(grain)};
  }
  /// For blocks of these lengths. Equal lists give equal placements.
  static Placement shard_blocks(int64_t dim, const std::vector<int64_t>& lengths,
                                int64_t grain = 1);
  /// For the first elements of a dimension of such blocks, as of a cache that is not full: each
  /// rank holds those that it holds of the whole dimension.
  static Placement shard_prefix(int64_t dim, const std::vector<int64_t>& lengths,
                                int64_t grain = 1);
  /// The tensor is on one rank. The others hold a tensor without rows.
  static Placement on_rank(int64_t rank) {
    Placement placement = shard(0);
    placement.rank = int32_t(rank);
    return placement;
  }
  static Placement reduction(ReduceOp op = ReduceOp::sum) { return {partial, op}; }

  bool is_replicated() const { return kind == replicated; }
  bool is_sharded() const { return kind == sharded; }
  bool is_partial() const { return kind == partial; }
  bool is_on_rank() const { return rank >= 0; }
  bool is_in_blocks() const { return block > 0 || lengths; }
  /// For a dimension of `size` whose blocks do not differ.
  int64_t n_blocks(int64_t size) const { return block > 0 ? size / block : 1; }
  int64_t block_length(int64_t size) const { return block > 0 ? block : size; }
  /// Whether a dimension of `size` ends inside of its blocks.
  bool is_prefix(int64_t size) const;
  /// What a rank holds of each block of a dimension of `size`. Not of one that is on a rank.
  std::vector<Span> pieces(int64_t size, int64_t n_ranks, int64_t rank) const;
  /// The number of elements that a rank holds of a dimension of `size`.
  int64_t part_length(int64_t size, int64_t n_ranks, int64_t rank) const;
  bool operator==(const Placement&) const = default;
};

/// One placement for each dimension of the mesh. A tensor dimension that several of them split is
/// split in their order: each splits the parts of those before it.
using Placements = std::array<Placement, Mesh::n_dims>;

/// `placement` on the mesh dimensions that have a role, replicated on the others.
REDCO_API Placements placements_on(Mesh::Role role, const Placement& placement);

/// "replicate", "shard(0)", "shard(0, block = 768)", "shard(0, block = {768, 256, 256})",
/// "on_rank(1)", "partial(sum)".
REDCO_API std::string to_string(const Placement& placement);
/// "{dp = shard(0), mp = replicate}".
REDCO_API std::string to_string(const Placements& placements);
/// Calls `function(name, placement)` for each mesh dimension that texts show: not for an optional
/// one on which the tensor is replicated.
template <class Function>
void for_each_shown(const Placements& placements, const Function& function) {
  for (Mesh::Dim dim : Mesh::dims)
    if (!Mesh::facts[dim].is_optional || !placements[dim].is_replicated())
      function(Mesh::facts[dim].name, placements[dim]);
}

/// The part that a rank holds of a dimension of `size`, or of a block of that length. Sizes differ
/// by at most one grain; a rank may hold nothing.
REDCO_API Span span_of(int64_t size, int64_t grain, int64_t n_ranks, int64_t rank);
/// The same for the placement of the dimension, if it is no dimension of blocks.
REDCO_API Span span_of(int64_t size, const Placement& placement, int64_t n_ranks, int64_t rank);
/// The part that this process holds of a dimension that the mesh dimensions with a role split.
REDCO_API Span span_of(int64_t size, Mesh::Role role, const Mesh& mesh);

/// Shards a tensor that every process holds in full: each keeps a copy of its part, without
/// communication. Differentiable: the gradient is gathered. Throws Error for a wrong dimension.
REDCO_API at::Tensor shard(const at::Tensor& tensor, const std::shared_ptr<const Mesh>& mesh,
                           const Placements& placements);

/// The row-major tensor of the logical `sizes` whose part on this process is `local`. They share
/// memory if `local` is contiguous and not a term of a partial sum. Throws Error if the sizes do
/// not match.
REDCO_API at::Tensor from_local(const at::Tensor& local, const std::shared_ptr<const Mesh>& mesh,
                                const Placements& placements, at::IntArrayRef sizes);

/// An uninitialised tensor split evenly over all processes along its largest dimension: a parameter
/// before its layout is known. Not split if it is small or there is one process.
REDCO_API at::Tensor empty_spread(at::IntArrayRef sizes, at::TensorOptions options,
                                  const std::shared_ptr<const Mesh>& mesh);

/// Redistributes a sharded tensor to other placements, with the collectives that move the fewest
/// bytes. Differentiable. Returns the tensor itself if it has them.
REDCO_API at::Tensor redistribute(const at::Tensor& tensor, const Placements& placements);

/// A view of the part of a tensor that `placements` give to this process; they may differ from the
/// tensor's own only by splitting replicated dimensions of the mesh. Not differentiable.
REDCO_API at::Tensor view_of_part(const at::Tensor& tensor, const Placements& placements);

REDCO_API bool is_sharded(const at::Tensor& tensor);
/// The placements of a tensor; all replicated if it is not sharded.
REDCO_API Placements placements_of(const at::Tensor& tensor);
/// The mesh of a tensor; null if it is not sharded.
REDCO_API std::shared_ptr<const Mesh> mesh_of(const at::Tensor& tensor);

/// A copy of the full tensor as a plain one on every process: a collective unless it is replicated.
/// Its incoming gradient is that of the full tensor.
REDCO_API at::Tensor full(const at::Tensor& tensor);
/// A tensor that one stage of a pipeline has computed, on the processes of all stages, with the
/// same placements: all of them must call it. Returns any other tensor itself. Differentiable.
REDCO_API at::Tensor from_stage(const at::Tensor& tensor);
/// This process's part as a plain tensor: a view, or a copy if it is a term of a partial sum.
/// Differentiable.
REDCO_API at::Tensor to_local(const at::Tensor& tensor);
/// The local part, or the tensor itself if it is not sharded, for code that only needs its memory.
/// Not recorded by autograd.
REDCO_API const at::Tensor& memory_of(const at::Tensor& tensor);
/// Returns what this process holds of a tensor now: the local part, or its rows that are at
/// experts. Undefined for a tensor of another stage of a pipeline, and in a pass that only finds
/// shapes, such as the one that decides the layout. Never communicates.
REDCO_API const at::Tensor& held_memory_of(const at::Tensor& tensor);

/// Statistics of sharding on this thread; moves.h counts what it sent.
struct ShardingCounters {
  int64_t plans_found = 0;  ///< operator calls with a cached plan
  int64_t plans_made = 0;
};
REDCO_API ShardingCounters& sharding_counters();

}  // namespace redco
