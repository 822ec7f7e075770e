// The one-entry cache of the last redistribution.

#include "last_redistribution.h"

#include <torch/csrc/autograd/function.h>

namespace redco::sharding {

namespace {

bool takes_a_collective(const Placements& from, const Placements& to) {
  for (Mesh::Dim dim : Mesh::dims)
    if (from[dim] != to[dim] && !from[dim].is_replicated()) return true;
  return false;
}

// Null for a tensor without a storage, such as a sparse one.
c10::StorageImpl* storage_of(const at::Tensor& local) {
  return local.has_storage() ? local.storage().unsafeGetStorageImpl() : nullptr;
}

}  // namespace

bool LastRedistribution::View::operator==(const View& other) const {
  return memory_id == other.memory_id && sizes == other.sizes && strides == other.strides &&
         offset == other.offset && from == other.from && to == other.to && type == other.type;
}

LastRedistribution::View LastRedistribution::view_of(const TensorArgument& argument,
                                                     const Placements& target) {
  const at::Tensor& tensor = argument.tensor;
  View view;
  view.memory_id = argument.impl->memory_id();
  view.order = memory_order(tensor.strides());
  for (int64_t dim : view.order) {
    view.sizes.push_back(tensor.size(dim));
    view.strides.push_back(tensor.stride(dim));
  }
  view.offset = tensor.storage_offset();
  view.from = permuted(argument.impl->placements(), view.order);
  view.to = permuted(target, view.order);
  view.type = tensor.scalar_type();
  return view;
}

bool LastRedistribution::may_hold(const TensorArgument& argument) {
  return argument.tensor.requires_grad() || torch::autograd::get_current_node();
}

at::Tensor LastRedistribution::find(const TensorArgument& argument,
                                    const Placements& target) const {
  if (!result_.defined() || !argument.impl) return {};
  if (version_ != version_of(argument.local())) return {};
  View view = view_of(argument, target);
  if (!(view == view_)) return {};
  return result_.permute(inverse(view.order));
}

void LastRedistribution::hold(const TensorArgument& argument, const Placements& target,
                              const at::Tensor& result) {
  if (!argument.impl || !takes_a_collective(argument.impl->placements(), target)) return;
  if (!storage_of(argument.local())) return;
  memory_ = argument.local().storage().getWeakStorageImpl();
  version_ = version_of(argument.local());
  view_ = view_of(argument, target);
  result_ = result.permute(view_.order);
}

void LastRedistribution::forget(const at::Tensor& local) {
  if (!result_.defined()) return;
  // Also compares with the result: some operators return memory that they read, without saying so
  // in their schema.
  c10::StorageImpl* written = storage_of(local);
  if (written == memory_._unsafe_get_target() || written == storage_of(result_)) result_.reset();
}

LastRedistribution& last_redistribution() {
  thread_local LastRedistribution cache;
  return cache;
}

}  // namespace redco::sharding
