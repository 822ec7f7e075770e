// The tensor implementation of a sharded tensor, and geometry helpers.

#include "sharded_tensor.h"

#include "../call/execution.h"
#include "routing.h"

#include <redco/detail/zero3_store.h>
#include <redco/error.h>

#include <ATen/ops/empty_strided.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <typeinfo>

namespace redco::sharding {

namespace {

// LibTorch reserves this functionality key for external use: below autograd, above the backends.
c10::DispatchKeySet keys_for(const at::Tensor& local, c10::Device device) {
  c10::BackendComponent backend = local.device() == device ? local.key_set().highestBackendKey()
                                  : device.is_cuda()       ? c10::BackendComponent::CUDABit
                                                           : c10::BackendComponent::CPUBit;
  // LibTorch reads these bits from the keys.
  constexpr c10::DispatchKeySet lazy_bits(
      {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});
  return c10::DispatchKeySet(c10::DispatchKey::Dense) | c10::DispatchKeySet(backend) |
         c10::DispatchKeySet(c10::DispatchKey::Fake) | (local.key_set() & lazy_bits);
}

// Shares the count of writes: tensors that are made below autograd count separately, even if they
// share memory.
void count_writes_of(const at::Tensor& base, const at::Tensor& alias) {
  if (base.is_inference() || alias.is_inference()) return;
  torch::autograd::impl::set_version_counter(alias, torch::autograd::impl::version_counter(base));
}

// In a trace, and for another stage, the local tensors are meta tensors. Returns the mesh's device
// then.
c10::Device device_for(const at::Tensor& local, const Mesh& mesh) {
  return execution().has_values() && !mesh.is_absent() ? local.device() : mesh.device();
}

uint64_t new_memory_id() {
  static std::atomic<uint64_t> last = 0;
  return ++last;
}

}  // namespace

Geometry geometry_of(const at::Tensor& tensor) {
  return {Sizes(tensor.sizes()), Sizes(tensor.strides()), tensor.storage_offset()};
}

Sizes memory_order(at::IntArrayRef strides) {
  Sizes order(strides.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return strides[size_t(a)] > strides[size_t(b)]; });
  return order;
}

Sizes inverse(const Sizes& order) {
  Sizes back(order.size());
  for (size_t i = 0; i < order.size(); ++i) back[size_t(order[i])] = int64_t(i);
  return back;
}

Geometry dense_geometry(at::IntArrayRef sizes, at::IntArrayRef strides) {
  Geometry geometry{Sizes(sizes), Sizes(sizes.size()), 0};
  Sizes order = memory_order(strides);
  int64_t stride = 1;
  for (size_t i = order.size(); i-- > 0;) {
    geometry.strides[size_t(order[i])] = stride;
    stride *= std::max<int64_t>(sizes[size_t(order[i])], 1);
  }
  return geometry;
}

// Dimensions with equal strides keep their order, so zeros give a row-major geometry.
Geometry contiguous_geometry(at::IntArrayRef sizes) {
  return dense_geometry(sizes, Sizes(sizes.size(), 0));
}

at::Tensor laid_out(const at::Tensor& local, const Geometry& geometry) {
  Sizes order = memory_order(geometry.strides);
  int64_t stride = 1;
  bool is_dense = true;
  for (size_t i = order.size(); i-- > 0 && is_dense;) {
    int64_t dim = order[i];
    if (local.size(dim) == 1 || geometry.strides[size_t(dim)] == 0) continue;
    is_dense = local.stride(dim) == stride;
    stride *= local.size(dim);
  }
  if (is_dense || local.numel() == 0) return local;
  at::Tensor copy = at::empty_strided(
      local.sizes(), dense_geometry(local.sizes(), geometry.strides).strides, local.options());
  return copy.copy_(local);
}

void overwrite(at::Tensor to, at::Tensor from) {
  for (int64_t dim = 0; dim < to.dim(); ++dim)
    if (to.stride(dim) == 0 && to.size(dim) > 1) {
      to = to.narrow(dim, 0, 1);
      from = from.narrow(dim, 0, 1);
    }
  to.copy_(from);
}

ShardedTensorImpl::ShardedTensorImpl(at::Tensor local, const Placements& placements,
                                     std::shared_ptr<const Mesh> mesh, const Geometry& geometry)
    : TensorImpl(keys_for(local, device_for(local, *mesh)), local.dtype(),
                 device_for(local, *mesh)),
      local_(std::move(local)),
      placements_(placements),
      mesh_(std::move(mesh)),
      memory_id_(new_memory_id()) {
  set_storage_access_should_throw();
  set_sizes_and_strides(geometry.sizes, geometry.strides, geometry.offset);
  if (!is_partial(placements_)) return;
  terms_ = std::make_shared<Terms>(Terms{
      numel(), is_non_overlapping_and_dense() ? local_ : at::Tensor(), memory_order(strides())});
}

const Placements& ShardedTensorImpl::placements() {
  if (terms_)
    for (Mesh::Dim dim : Mesh::dims)
      if (terms_->is_reduced[dim] && placements_[dim].is_partial())
        placements_[dim] = Placement::replicate();
  return placements_;
}

// Reduces a part together with the rest of its memory, for all parts at once, if that takes no
// longer than to start another collective. Decides by the logical geometry, because the memory
// around the local tensor differs between processes.
bool ShardedTensorImpl::reduce_in_place(Mesh::Dim dim) {
  constexpr int64_t little = 1 << 20;  // bytes; an H100 sends them in some 5 us over NVLink
  const bool is_part = numel() != terms_->numel || !is_non_overlapping_and_dense();
  if (is_part && (!terms_->memory.defined() || terms_->numel * itemsize() > little)) return false;
  forget_rows();
  at::Tensor terms =
      is_part ? terms_->memory.permute(terms_->order) : local_.permute(memory_order(strides()));
  at::Tensor reduced = mesh_->group(dim).all_reduce(terms.contiguous(), placements_[dim].op);
  if (!reduced.is_alias_of(terms)) terms.copy_(reduced);
  terms_->is_reduced[dim] = true;
  return true;
}

void ShardedTensorImpl::set_routed(std::shared_ptr<RoutedRows> rows) {
  if (!rows->home.defined()) local_.reset();
  if (terms_) terms_->memory.reset();  // views are of the returned rows
  routed_ = std::move(rows);
}

const at::Tensor& ShardedTensorImpl::held() const {
  return !local_.defined() && routed_ ? routed_->rows : local_;
}

std::shared_ptr<RoutedRows> ShardedTensorImpl::routed() const {
  return routed_ && routed_->are_current() ? routed_ : nullptr;
}

void ShardedTensorImpl::bring_home() const {
  routed_->bring_home();
  local_ = routed_->home;
}

void ShardedTensorImpl::forget_rows() {
  if (!routed_) return;
  local();
  routed_->rows.reset();
  routed_.reset();
}

void ShardedTensorImpl::share_memory_of(const ShardedTensorImpl& base) {
  if (base.terms_) terms_ = base.terms_;
  count_writes_of(base.local_, local_);
}

void ShardedTensorImpl::keep_in(const std::shared_ptr<Zero3Store>& store, size_t param) {
  Sizes order(size_t(dim()), 0);
  std::iota(order.begin(), order.end(), int64_t{0});
  stored_ = std::make_shared<const StoredPart>(StoredPart{store, param, order});
}

void ShardedTensorImpl::be_stored_like(const ShardedTensorImpl& base, at::IntArrayRef order) {
  Sizes composed;
  for (int64_t dim : order) composed.push_back(base.stored_->order[size_t(dim)]);
  const StoredPart& part = *base.stored_;
  stored_ = std::make_shared<const StoredPart>(
      StoredPart{part.store, part.param, composed, part.store->version(part.param),
                 part.is_absent_parameter && dtype() == base.dtype()});
}

void ShardedTensorImpl::be_read_as(const ShardedTensorImpl& base) {
  if (mesh_->is_absent()) {
    if (!base.stored_) return;
    const StoredPart& part = *base.stored_;
    stored_ = std::make_shared<const StoredPart>(
        StoredPart{part.store, part.param, part.order, part.version,
                   part.store->owns(part.param, base.local_)});
    return;
  }
  share_memory_of(base);
  memory_id_ = base.memory_id_;
  stored_ = base.stored_;
}

constexpr const char* no_memory =
    "This tensor is sharded over the processes. Get the whole tensor with full, or this process' "
    "part with to_local";

const c10::Storage& ShardedTensorImpl::storage() const { fail(no_memory); }

bool ShardedTensorImpl::has_storage() const {
  // LibTorch lets each tensor set the message, but not its class.
  if (!extra_meta_)
    const_cast<ShardedTensorImpl*>(this)->release_storage_and_set_meta_custom_data_ptr_error_msg_(
        no_memory);
  return false;
}

void ShardedTensorImpl::set_local(at::Tensor local, const Placements& placements,
                                  const Geometry& geometry) {
  routed_.reset();
  local_ = std::move(local);
  memory_id_ = new_memory_id();
  placements_ = placements;
  set_sizes_and_strides(geometry.sizes, geometry.strides, geometry.offset);
}

void ShardedTensorImpl::take_local_of(const ShardedTensorImpl& other) {
  local_ = other.local_;
  memory_id_ = other.memory_id_;
  placements_ = other.placements_;
  terms_ = other.terms_;
  gathered_view_ = other.gathered_view_;
  routed_ = other.routed_;
}

void ShardedTensorImpl::release_resources() {
  TensorImpl::release_resources();
  local_.reset();
  terms_.reset();
  stored_.reset();
  gathered_view_.reset();
  routed_.reset();
  routing_.reset();
}

c10::intrusive_ptr<ShardedTensorImpl> ShardedTensorImpl::detached_copy() const {
  Geometry geometry{Sizes(sizes()), Sizes(strides()), storage_offset()};
  auto copy = c10::make_intrusive<ShardedTensorImpl>(held(), placements_, mesh_, geometry);
  copy->memory_id_ = memory_id_;
  copy->terms_ = terms_;
  copy->stored_ = stored_;
  copy->gathered_view_ = gathered_view_;
  copy->local_ = local_;
  copy->routed_ = routed_;
  copy->routing_ = routing_;
  return copy;
}

c10::intrusive_ptr<c10::TensorImpl> ShardedTensorImpl::shallow_copy_and_detach(
    const c10::VariableVersion& version_counter, bool allow_tensor_metadata_change) const {
  auto copy = detached_copy();
  if (!copy->is_inference()) copy->set_version_counter(version_counter);
  copy->set_allow_tensor_metadata_change(allow_tensor_metadata_change);
  return copy;
}

c10::intrusive_ptr<c10::TensorImpl> ShardedTensorImpl::shallow_copy_and_detach(
    c10::VariableVersion&& version_counter, bool allow_tensor_metadata_change) const {
  auto copy = detached_copy();
  if (!copy->is_inference()) copy->set_version_counter(std::move(version_counter));
  copy->set_allow_tensor_metadata_change(allow_tensor_metadata_change);
  return copy;
}

void ShardedTensorImpl::shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& impl) {
  auto* source = dynamic_cast<ShardedTensorImpl*>(impl.get());
  require(source != nullptr,
          "set_data: a sharded tensor cannot take the data of a plain one; "
          "shard that first");
  local_ = source->local_;
  placements_ = source->placements_;
  mesh_ = source->mesh_;
  memory_id_ = source->memory_id_;
  terms_ = source->terms_;
  stored_ = source->stored_;
  gathered_view_ = source->gathered_view_;
  routed_ = source->routed_;
  routing_ = source->routing_;
  set_sizes_and_strides(source->sizes(), source->strides(), source->storage_offset());
}

at::Tensor alias_of(const at::Tensor& local) {
  at::Tensor alias = local.alias();
  count_writes_of(local, alias);
  return alias;
}

int64_t version_of(const at::Tensor& local) {
  return local.is_inference() ? 0 : int64_t(local._version());
}

ShardedTensorImpl* sharded_impl(const at::Tensor& tensor) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  // Checks the type too: `set_data`, for one, sets the key on other tensors.
  if (!impl->key_set().has(c10::DispatchKey::Fake) || typeid(*impl) != typeid(ShardedTensorImpl))
    return nullptr;
  return static_cast<ShardedTensorImpl*>(impl);
}

at::Tensor wrap(at::Tensor local, const Placements& placements, std::shared_ptr<const Mesh> mesh,
                const Geometry& geometry) {
  return at::detail::make_tensor<ShardedTensorImpl>(std::move(local), placements, std::move(mesh),
                                                    geometry);
}

bool is_replicated(const Placements& placements) {
  return std::ranges::all_of(placements, &Placement::is_replicated);
}

bool is_partial(const Placements& placements) {
  return std::ranges::any_of(placements, &Placement::is_partial);
}

bool is_split(const Placements& placements) {
  return std::ranges::any_of(placements, &Placement::is_sharded);
}

bool is_split_again(const Placements& placements) {
  return std::ranges::any_of(
      Mesh::dims, [&](Mesh::Dim dim) { return splitting_with(placements, dim).size() > 1; });
}

MeshDims splitting(const Placements& placements, int64_t dim) {
  MeshDims over;
  for (Mesh::Dim i : Mesh::dims)
    if (placements[i].is_sharded() && placements[i].dim == dim) over.push_back(i);
  return over;
}

MeshDims splitting_with(const Placements& placements, Mesh::Dim last) {
  if (!placements[last].is_sharded()) return {};
  MeshDims over = splitting(placements, placements[last].dim);
  while (over.back() != last) over.pop_back();
  return over;
}

Placements permuted(Placements placements, const Sizes& order) {
  for (Placement& placement : placements)
    if (placement.is_sharded())
      placement.dim = int32_t(std::find(order.begin(), order.end(), placement.dim) - order.begin());
  return placements;
}

Placements shifted(Placements placements, int32_t first, int32_t by) {
  for (Placement& placement : placements)
    if (placement.is_sharded() && placement.dim >= first) placement.dim += by;
  return placements;
}

bool can_split_again(int64_t size, const MeshDims& over_all, const Placements& placements,
                     const Mesh& mesh) {
  // A mesh dimension that puts the tensor on one rank does not split it.
  MeshDims over;
  for (Mesh::Dim dim : over_all)
    if (!placements[dim].is_on_rank()) over.push_back(dim);
  if (over.size() < 2) return true;
  const Placement &first = placements[over.front()], &last = placements[over.back()];
  // The first dimension splits blocks of one length. The last one leaves each rank some whole
  // blocks.
  if (over.size() == 2 && first.block > 0 && !last.is_in_blocks() && last.grain == 1)
    return first.n_blocks(size) % mesh.size(over.back()) == 0;
  if (last.lengths) return false;
  const int64_t unit = last.block > 0 ? last.block : last.grain;
  int64_t n_parts = 1, even = unit;  // `even`: equal parts of its multiples are such multiples
  for (size_t i = 0; i + 1 < over.size(); ++i) {
    if (placements[over[i]].is_in_blocks()) return false;
    n_parts *= mesh.size(over[i]);
    even = std::lcm(even, placements[over[i]].grain);
  }
  return unit == 1 || (over.size() == 2 && first.grain % unit == 0) || size % (n_parts * even) == 0;
}

Sizes local_sizes(at::IntArrayRef sizes, const Placements& placements, const Mesh& mesh) {
  Sizes local(sizes.begin(), sizes.end());
  for (Mesh::Dim dim : Mesh::dims) {
    const Placement& placement = placements[dim];
    if (!placement.is_sharded()) continue;
    const Group& group = mesh.group(dim);
    int64_t& size = local[size_t(placement.dim)];
    size = placement.part_length(size, group.size(), group.rank());
  }
  return local;
}

}  // namespace redco::sharding
