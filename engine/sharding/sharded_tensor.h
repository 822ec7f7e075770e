#pragma once

#include <redco/sharding.h>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/SmallVector.h>

#include <memory>

namespace redco {
class Zero3Store;
}

namespace redco::sharding {

using Sizes = c10::SmallVector<int64_t, 6>;
using MeshDims = c10::SmallVector<Mesh::Dim, Mesh::n_dims>;

/// Sizes, strides and offset of the logical tensor: the same on all processes, whatever part each
/// holds. Composite operators decide by them, so every process decides alike; for their decisions
/// to hold for the local tensor, its dimensions have the same order in memory.
struct Geometry {
  Sizes sizes;
  Sizes strides;
  int64_t offset = 0;
};

Geometry geometry_of(const at::Tensor& tensor);

/// The dimensions from the outermost in memory to the innermost.
Sizes memory_order(at::IntArrayRef strides);

/// The order that takes a tensor back which was permuted to `order`.
Sizes inverse(const Sizes& order);

/// The geometry of a dense tensor of these sizes whose dimensions have the memory order of
/// `strides`.
Geometry dense_geometry(at::IntArrayRef sizes, at::IntArrayRef strides);

/// The geometry of a row-major tensor.
Geometry contiguous_geometry(at::IntArrayRef sizes);

/// `local`, dense in the memory order of the geometry: a copy, unless it is already. Dimensions
/// that the geometry expands (stride 0) are left as they are.
at::Tensor laid_out(const at::Tensor& local, const Geometry& geometry);

/// Copies `from` into the memory of `to`, whose expanded dimensions are one element there.
void overwrite(at::Tensor to, at::Tensor from);

class GatheredView;

/// Where the whole of a tensor on dp is to be had: a parameter, its dimensions in this order.
struct StoredPart {
  std::shared_ptr<Zero3Store> store;
  size_t param;
  Sizes order;
};

/// A tensor of which this process holds a part. Operators see the logical sizes; autograd records
/// them above the dispatch key that brings every one of them to the fallback in dispatch.cpp.
class ShardedTensorImpl final : public c10::TensorImpl {
 public:
  ShardedTensorImpl(at::Tensor local, const Placements& placements,
                    std::shared_ptr<const Mesh> mesh, const Geometry& geometry);

  const at::Tensor& local() const { return local_; }
  const std::shared_ptr<const Mesh>& mesh() const { return mesh_; }
  const Placements& placements();

  /// Reduces what is partial on `dim`, in place: the value stays, and views of the same memory see
  /// it reduced too. False, and nothing done, if the tensor is not all of its memory.
  bool reduce_in_place(Mesh::Dim dim);

  /// Shares the memory of `base`: a sum reduced there is reduced here, and both count the same
  /// writes.
  void share_memory_of(const ShardedTensorImpl& base);

  /// Set if this is a copy where the plain operator would have made a view.
  const std::shared_ptr<const GatheredView>& gathered_view() const { return gathered_view_; }
  void set_gathered_view(std::shared_ptr<const GatheredView> view) {
    gathered_view_ = std::move(view);
  }

  /// Takes the local tensor of `other`, of the same logical geometry, in place of its own.
  void take_local_of(const ShardedTensorImpl& other);

  /// Null, unless a store brings the whole together for operators that read it.
  const std::shared_ptr<const StoredPart>& stored() const { return stored_; }
  void keep_in(const std::shared_ptr<Zero3Store>& store, size_t param);
  /// Its dimensions are those of `base` in this order.
  void be_stored_like(const ShardedTensorImpl& base, at::IntArrayRef order);

  /// The local tensor has been replaced or changed its shape, and with it where it lies.
  void set_local(at::Tensor local, const Placements& placements, const Geometry& geometry);

  /// Refuses, naming what to call instead. Data pointers ask `has_storage` before they refuse.
  const c10::Storage& storage() const override;
  bool has_storage() const override;

  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(
      const c10::VariableVersion& version_counter,
      bool allow_tensor_metadata_change) const override;
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(
      c10::VariableVersion&& version_counter, bool allow_tensor_metadata_change) const override;
  void shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& impl) override;

 private:
  const char* tensorimpl_type_name() const override { return "ShardedTensorImpl"; }
  c10::intrusive_ptr<ShardedTensorImpl> detached_copy() const;

  at::Tensor local_;
  Placements placements_;
  std::shared_ptr<const Mesh> mesh_;
  /// Memory that holds this process' terms of a sum; shared by all its views.
  struct Terms {
    int64_t numel;                                ///< of the logical tensor that fills the memory
    std::array<bool, Mesh::n_dims> is_reduced{};  ///< over which mesh dimensions
  };
  std::shared_ptr<Terms> terms_;
  std::shared_ptr<const StoredPart> stored_;
  std::shared_ptr<const GatheredView> gathered_view_;
};

/// The same memory, whose writes count for `local` too.
at::Tensor alias_of(const at::Tensor& local);

/// Null for a plain tensor.
ShardedTensorImpl* sharded_impl(const at::Tensor& tensor);

at::Tensor wrap(at::Tensor local, const Placements& placements, std::shared_ptr<const Mesh> mesh,
                const Geometry& geometry);

bool is_replicated(const Placements& placements);
/// Whether it is a sum or an extreme that is still to be reduced, over some mesh dimension.
bool is_partial(const Placements& placements);
/// Whether some dimension is.
bool is_split(const Placements& placements);
/// Whether both split one dimension of the tensor.
bool is_split_by_both(const Placements& placements);

/// The mesh dimensions that split a tensor's dimension.
MeshDims splitting(const Placements& placements, int64_t dim);

/// The placements of a tensor that is permuted to `order`.
Placements permuted(Placements placements, const Sizes& order);

/// Whether mp can split a dimension of this size that dp splits too: dp must cut between blocks.
bool can_split_again(int64_t size, const Placement& dp, const Placement& mp, int64_t n_dp);

/// The sizes of this process' part.
Sizes local_sizes(at::IntArrayRef sizes, const Placements& placements, const Mesh& mesh);

/// `local`, of a tensor of these logical sizes and strides, in other placements. What is moved is
/// moved in the logical memory order, so that the processes' terms and parts meet element by
/// element; an expanded dimension that is not split moves as one element. Works below autograd.
at::Tensor redistribute_local(at::Tensor local, at::IntArrayRef sizes, at::IntArrayRef strides,
                              const Placements& from, const Placements& to, const Mesh& mesh);

/// Bytes this process sends for one mesh dimension's change of a local tensor of `bytes`.
double redistribution_cost(const Placement& from, const Placement& to, double bytes,
                           int64_t n_ranks);

}  // namespace redco::sharding
