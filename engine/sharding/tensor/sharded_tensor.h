// The tensor implementation of a sharded tensor, and geometry helpers.

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

/// Sizes, strides and offset of the logical tensor, equal on all processes. Composite operators
/// decide by them, so every process decides alike. The local tensor has the same memory order, so
/// that these decisions hold for it too.
struct Geometry {
  Sizes sizes;
  Sizes strides;
  int64_t offset = 0;
};

Geometry geometry_of(const at::Tensor& tensor);

/// The dimensions from outermost to innermost in memory.
Sizes memory_order(at::IntArrayRef strides);

/// The permutation that undoes `order`.
Sizes inverse(const Sizes& order);

/// The geometry of a dense tensor of these sizes, in the memory order of `strides`.
Geometry dense_geometry(at::IntArrayRef sizes, at::IntArrayRef strides);

/// The geometry of a row-major tensor.
Geometry contiguous_geometry(at::IntArrayRef sizes);

/// Returns `local` as a dense tensor in the memory order of the geometry; copies only if needed.
/// Dimensions that the geometry expands (stride 0) are unchanged.
at::Tensor laid_out(const at::Tensor& local, const Geometry& geometry);

/// Copies `from` to `to`; an expanded dimension of `to` counts as one element.
void overwrite(at::Tensor to, at::Tensor from);

class GatheredView;
class Routing;
struct RoutedRows;

/// Which Zero3Store gathers this ZeRO-3 parameter, the dimension order of this view of it, and the
/// parameter's version whose values a converted copy has.
struct StoredPart {
  std::shared_ptr<Zero3Store> store;
  size_t param;
  Sizes order;
  int64_t version = 0;
  bool is_absent_parameter = false;  ///< and no copy of one; of an absent stage
};

/// A sharded tensor: this process holds its local part. Operators see the logical sizes. Autograd
/// records these; below it, a dispatch key sends every operator to the fallback in dispatch.cpp.
class ShardedTensorImpl final : public c10::TensorImpl {
 public:
  ShardedTensorImpl(at::Tensor local, const Placements& placements,
                    std::shared_ptr<const Mesh> mesh, const Geometry& geometry);

  /// Brings back rows that are at experts, which is a collective.
  const at::Tensor& local() const {
    if (!local_.defined() && routed_) bring_home();
    return local_;
  }
  /// The local tensor, or the rows if there is none yet.
  const at::Tensor& held() const;
  const std::shared_ptr<const Mesh>& mesh() const { return mesh_; }
  const Placements& placements();

  /// Reduces a partial tensor over `dim` in place, so that views of the same memory are reduced
  /// too. Returns false and does nothing if the tensor does not cover all of its memory.
  bool reduce_in_place(Mesh::Dim dim);

  /// Shares the memory of `base`: a reduction of one reduces both, and writes to either count for
  /// both.
  void share_memory_of(const ShardedTensorImpl& base);

  /// Identifies the logical memory: views of one tensor have one id, on all processes alike. The
  /// local storage does not: parts of several tensors may lie in one.
  uint64_t memory_id() const { return memory_id_; }
  void view_memory_of(const ShardedTensorImpl& base) { memory_id_ = base.memory_id_; }

  /// Set if this is a copy where the plain operator would have made a view.
  const std::shared_ptr<const GatheredView>& gathered_view() const { return gathered_view_; }
  void set_gathered_view(std::shared_ptr<const GatheredView> view) {
    gathered_view_ = std::move(view);
  }

  /// The rows of this tensor at the ranks of experts. Null, unless an operator of experts made it
  /// or has read it and it was not written to since.
  std::shared_ptr<RoutedRows> routed() const;
  /// `rows` without `home`: there is no local tensor until somebody asks for it.
  void set_routed(std::shared_ptr<RoutedRows> rows);
  /// Before a write: the local tensor is what counts from now on, of copies of this one too.
  void forget_rows();
  /// The routing by these numbers of experts; null if it is not known.
  const std::shared_ptr<const Routing>& routing() const { return routing_; }
  void set_routing(std::shared_ptr<const Routing> routing) { routing_ = std::move(routing); }

  /// Takes over the local tensor of `other`, which has the same logical geometry.
  void take_local_of(const ShardedTensorImpl& other);

  /// Null, unless a Zero3Store gathers this parameter for the operators that read it.
  const std::shared_ptr<const StoredPart>& stored() const { return stored_; }
  void keep_in(const std::shared_ptr<Zero3Store>& store, size_t param);
  /// Marks this as a view or a converted copy of `base`, which the store has the values of, with
  /// its dimensions in this order.
  void be_stored_like(const ShardedTensorImpl& base, at::IntArrayRef order);
  /// Marks this as another name of `base`, with the same local tensor, on the mesh of a stage.
  void be_read_as(const ShardedTensorImpl& base);

  /// Replaces the local tensor, its placements and the logical geometry.
  void set_local(at::Tensor local, const Placements& placements, const Geometry& geometry);

  /// Throws an error that names the functions to call instead. LibTorch calls `has_storage` before
  /// it throws about data pointers.
  const c10::Storage& storage() const override;
  bool has_storage() const override;

  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(
      const c10::VariableVersion& version_counter,
      bool allow_tensor_metadata_change) const override;
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(
      c10::VariableVersion&& version_counter, bool allow_tensor_metadata_change) const override;
  void shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& impl) override;

  /// Frees the local part when only weak references are left, such as those of a profile.
  void release_resources() override;

 private:
  const char* tensorimpl_type_name() const override { return "ShardedTensorImpl"; }
  c10::intrusive_ptr<ShardedTensorImpl> detached_copy() const;
  void bring_home() const;

  mutable at::Tensor local_;
  Placements placements_;
  std::shared_ptr<const Mesh> mesh_;
  uint64_t memory_id_;
  /// This process' terms of a sum (or extreme) in one memory; shared by all views of it.
  struct Terms {
    int64_t numel;      ///< of the logical tensor that fills the memory
    at::Tensor memory;  ///< its terms here; undefined if they do not fill one memory
    Sizes order;        ///< of its dimensions in memory, from the outermost to the innermost
    std::array<bool, Mesh::n_dims> is_reduced{};  ///< over which mesh dimensions
  };
  std::shared_ptr<Terms> terms_;
  std::shared_ptr<const StoredPart> stored_;
  std::shared_ptr<const GatheredView> gathered_view_;
  mutable std::shared_ptr<RoutedRows> routed_;
  std::shared_ptr<const Routing> routing_;
};

/// Returns an alias whose writes count for `local` too.
at::Tensor alias_of(const at::Tensor& local);

/// The number of writes to a local tensor; 0 if it does not count them, as in inference mode.
int64_t version_of(const at::Tensor& local);

/// Returns null for a plain tensor.
ShardedTensorImpl* sharded_impl(const at::Tensor& tensor);

at::Tensor wrap(at::Tensor local, const Placements& placements, std::shared_ptr<const Mesh> mesh,
                const Geometry& geometry);

bool is_replicated(const Placements& placements);
/// Whether the tensor is partial over some mesh dimension.
bool is_partial(const Placements& placements);
/// Whether some mesh dimension splits the tensor.
bool is_split(const Placements& placements);
/// Whether several mesh dimensions split the same dimension of the tensor.
bool is_split_again(const Placements& placements);

/// The mesh dimensions that split dimension `dim`.
MeshDims splitting(const Placements& placements, int64_t dim);

/// The placements of the tensor after a permutation to `order`.
Placements permuted(Placements placements, const Sizes& order);

/// The placements of the tensor with `by` dimensions more before dimension `first`.
Placements shifted(Placements placements, int32_t first, int32_t by);

/// The mesh dimensions, up to `last`, that split the dimension of the tensor that `last` splits;
/// empty if it splits none.
MeshDims splitting_with(const Placements& placements, Mesh::Dim last);

/// Whether the last of these mesh dimensions can split a dimension of this size that the others
/// split before it: they must cut between its blocks, or its grains, or it between theirs.
bool can_split_again(int64_t size, const MeshDims& over, const Placements& placements,
                     const Mesh& mesh);

/// The sizes of the local tensor.
Sizes local_sizes(at::IntArrayRef sizes, const Placements& placements, const Mesh& mesh);

/// Redistributes `local`, from a tensor of these logical sizes and strides. Collectives run in the
/// logical memory order, so that elements match between processes; an expanded dimension that is
/// not split moves as one element. Works below autograd.
at::Tensor redistribute_local(at::Tensor local, at::IntArrayRef sizes, at::IntArrayRef strides,
                              const Placements& from, const Placements& to, const Mesh& mesh);

/// The bytes that this process sends to redistribute a local tensor of `bytes` over one mesh
/// dimension.
double redistribution_cost(const Placement& from, const Placement& to, double bytes,
                           int64_t n_ranks);

}  // namespace redco::sharding
