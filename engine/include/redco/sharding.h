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

namespace redco {

/// How a tensor lies on one dimension of the mesh.
struct REDCO_API Placement {
  enum Kind : uint8_t {
    replicated,  ///< whole on every rank
    sharded,     ///< a piece of the dimension `dim` on each rank
    partial,     ///< every rank has a whole tensor; the value is their reduction by `op`
  };

  Kind kind = replicated;
  ReduceOp op = ReduceOp::sum;
  int32_t dim = 0;
  /// The dimension is blocks of this length, each of which is split; 0: it is one block. A fused
  /// query-key-value weight is three blocks, so that each rank holds its heads of all three.
  int32_t block = 0;
  /// The dimension is cut at multiples of this: two dimensions merged into one are cut between rows
  /// of the former first.
  int32_t grain = 1;

  static Placement replicate() { return {}; }
  static Placement shard(int64_t dim, int64_t block = 0, int64_t grain = 1) {
    return {sharded, ReduceOp::sum, int32_t(dim), int32_t(block), int32_t(grain)};
  }
  static Placement reduction(ReduceOp op = ReduceOp::sum) { return {partial, op}; }

  bool is_replicated() const { return kind == replicated; }
  bool is_sharded() const { return kind == sharded; }
  bool is_partial() const { return kind == partial; }
  /// Of a dimension of `size`.
  int64_t n_blocks(int64_t size) const { return block > 0 ? size / block : 1; }
  int64_t block_length(int64_t size) const { return block > 0 ? block : size; }
  bool operator==(const Placement&) const = default;
};

/// One for each dimension of the mesh. A tensor dimension split over both is split over dp first.
using Placements = std::array<Placement, Mesh::n_dims>;

/// "replicate", "shard(0)", "shard(0, block = 768)", "partial(sum)".
REDCO_API std::string to_string(const Placement& placement);
REDCO_API std::string to_string(const Placements& placements);

/// The part of a dimension of `size`, or of a block of that length, that a rank holds: [begin,
/// end). Sizes differ by at most one grain; a rank may hold nothing.
struct Span {
  int64_t begin = 0, end = 0;
  int64_t length() const { return end - begin; }
};
REDCO_API Span span_of(int64_t size, int64_t grain, int64_t n_ranks, int64_t rank);

/// A tensor that every process holds whole, laid out over the mesh: each keeps its part. Without
/// communication. Differentiable: the gradient comes back whole. Throws Error for a dimension that
/// is not there.
REDCO_API at::Tensor shard(const at::Tensor& tensor, const std::shared_ptr<const Mesh>& mesh,
                           const Placements& placements);

/// The row-major tensor whose part on this process is `local`, of the logical `sizes`. They share
/// memory if `local` is contiguous and no term of a sum. Throws Error unless they fit together.
REDCO_API at::Tensor from_local(const at::Tensor& local, const std::shared_ptr<const Mesh>& mesh,
                                const Placements& placements, at::IntArrayRef sizes);

/// An uninitialised tensor that all processes share evenly, along its largest dimension: a parameter
/// before its layout is known. Whole, where it is small or the process alone.
REDCO_API at::Tensor empty_spread(at::IntArrayRef sizes, at::TensorOptions options,
                                  const std::shared_ptr<const Mesh>& mesh);

/// The same tensor in other placements, by the collectives that move the fewest bytes.
/// Differentiable. A tensor that is not sharded counts as replicated and needs `mesh`.
REDCO_API at::Tensor redistribute(const at::Tensor& tensor, const Placements& placements);

/// The part of a tensor that `placements` give to this process, where they differ from its own only
/// in that they split what is whole: it shares its memory. Not differentiable.
REDCO_API at::Tensor view_of_part(const at::Tensor& tensor, const Placements& placements);

REDCO_API bool is_sharded(const at::Tensor& tensor);
/// All replicated for a tensor that is not sharded.
REDCO_API Placements placements_of(const at::Tensor& tensor);
/// Null for a tensor that is not sharded.
REDCO_API std::shared_ptr<const Mesh> mesh_of(const at::Tensor& tensor);

/// The whole tensor as a plain one, on every process: a collective unless it is replicated. The
/// gradient it is given is the whole one.
REDCO_API at::Tensor full(const at::Tensor& tensor);
/// This process' part as a plain tensor: its memory, or a copy of a sum's term. Differentiable.
REDCO_API at::Tensor to_local(const at::Tensor& tensor);
/// The same, or the tensor itself where it is not sharded, for what only asks for its memory: outside
/// the recorded history.
REDCO_API const at::Tensor& memory_of(const at::Tensor& tensor);

/// What the sharding did so far on this thread; moves.h has what it sent.
struct ShardingCounters {
  int64_t plans_found = 0;  ///< calls of operators whose plan was at hand
  int64_t plans_made = 0;
};
REDCO_API ShardingCounters& sharding_counters();

}  // namespace redco
