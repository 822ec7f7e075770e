#pragma once

#include <redco/sharding.h>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/SmallVector.h>

#include <memory>

namespace redco {

using Sizes = c10::SmallVector<int64_t, 6>;

/// Sizes, strides and offset of the logical tensor. What composite operators decide by them must
/// hold for the local tensor too, so they mirror its order.
struct Geometry {
  Sizes sizes;
  Sizes strides;
  int64_t offset = 0;
};

Geometry geometry_of(const at::Tensor& tensor);

/// The geometry of a tensor of these sizes whose dimensions lie in memory in `local`'s order.
Geometry dense_geometry(at::IntArrayRef sizes, const at::Tensor& local);

/// The geometry of a tensor of these sizes of which this process holds `local`: that one's own,
/// where it is no part.
Geometry logical_geometry(at::IntArrayRef sizes, const Placements& placements,
                          const at::Tensor& local);

class ParameterStore;

/// Where the whole of a tensor on dp is to be had: a parameter, its dimensions in this order.
struct StoredPart {
  std::shared_ptr<ParameterStore> store;
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
  /// it reduced too. False, and nothing done, where the tensor is not all of its memory.
  bool reduce_in_place(Mesh::Dim dim);

  /// Shares the memory of `base`, of which it is a view: what is reduced there is reduced here.
  void be_view_of(ShardedTensorImpl& base) { reduced_ = base.reduced_; }

  /// Where the plain operator would have made a view this is a copy: writing to it would be lost.
  bool is_copy_of_view() const { return is_copy_of_view_; }
  void mark_copy_of_view() { is_copy_of_view_ = true; }

  /// Null, unless a store brings the whole together for operators that read it.
  const std::shared_ptr<const StoredPart>& stored() const { return stored_; }
  void keep_in(const std::shared_ptr<ParameterStore>& store, size_t param);
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
  /// Which mesh dimensions the memory has been reduced over; shared by all its views.
  std::shared_ptr<std::array<bool, Mesh::n_dims>> reduced_;
  std::shared_ptr<const StoredPart> stored_;
  bool is_copy_of_view_ = false;
};

/// Null for a plain tensor.
ShardedTensorImpl* sharded_impl(const at::Tensor& tensor);

at::Tensor wrap(at::Tensor local, const Placements& placements, std::shared_ptr<const Mesh> mesh,
                const Geometry& geometry);

bool is_replicated(const Placements& placements);
/// Whether some dimension is.
bool is_split(const Placements& placements);
/// Whether both split one dimension of the tensor.
bool is_split_by_both(const Placements& placements);

/// Whether mp can split a dimension of this size that dp splits too: dp must cut between blocks.
bool can_split_again(int64_t size, const Placement& dp, const Placement& mp, int64_t n_dp);

/// The sizes of this process' part.
Sizes local_sizes(at::IntArrayRef sizes, const Placements& placements, const Mesh& mesh);

/// `local`, of a tensor of logical `sizes`, in other placements. Works below autograd.
at::Tensor redistribute_local(at::Tensor local, at::IntArrayRef sizes, const Placements& from,
                              const Placements& to, const Mesh& mesh);

/// Bytes this process sends for one mesh dimension's change of a local tensor of `bytes`.
double redistribution_cost(const Placement& from, const Placement& to, double bytes,
                           int64_t n_ranks);

}  // namespace redco
