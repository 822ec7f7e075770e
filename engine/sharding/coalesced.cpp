// Redistributes several tensors in one collective.

#include <redco/detail/coalesced.h>

#include "sharded_tensor.h"
#include "split.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

namespace redco {

using namespace sharding;

namespace {

Split split_of(const at::Tensor& tensor, const Placement& placement, Mesh::Dim dim,
               const Mesh& mesh) {
  return Split(placement, tensor.size(placement.dim), mesh.size(dim));
}

// A tensor's row of the buffer. Each rank's row joins its parts of all tensors.
at::Tensor row_of(const at::Tensor& part) { return part.reshape({-1}); }

}  // namespace

CoalescedChange start_change(std::vector<at::Tensor> tensors, const std::vector<Placement>& targets,
                             Mesh::Dim dim) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  std::vector<at::Tensor> sent;
  const Mesh& mesh = *sharded_impl(tensors[0])->mesh();
  Group& group = mesh.group(dim);
  Placement from = sharded_impl(tensors[0])->placements()[dim];
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& local = sharded_impl(tensors[i])->local();
    if (from.is_sharded())
      sent.push_back(
          row_of(split_of(tensors[i], sharded_impl(tensors[i])->placements()[dim], dim, mesh)
                     .padded(local)));
    else if (targets[i].is_sharded())
      sent.push_back(split_of(tensors[i], targets[i], dim, mesh).parts(local).flatten(1));
    else
      sent.push_back(row_of(local));
  }
  CoalescedChange change;
  change.dim_ = dim;
  change.targets_ = targets;
  if (from.is_sharded())
    change.pending_ = group.start_all_gather(at::cat(sent));
  else if (targets[0].is_sharded())
    change.pending_ = group.start_reduce_scatter(at::cat(sent, 1), from.op);
  else
    change.pending_ = group.start_all_reduce(at::cat(sent), from.op);
  change.tensors_ = std::move(tensors);
  return change;
}

std::vector<at::Tensor> CoalescedChange::wait() {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::Tensor received = pending_->wait();
  std::vector<at::Tensor> results;
  int64_t offset = 0;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    ShardedTensorImpl* impl = sharded_impl(tensors_[i]);
    const Mesh& mesh = *impl->mesh();
    Placements placements = impl->placements();
    at::Tensor local;
    auto next = [&](at::IntArrayRef sizes) {
      int64_t length = c10::multiply_integers(sizes);
      at::Tensor piece = received.narrow(-1, offset, length);
      offset += length;
      return piece;
    };
    if (placements[dim_].is_sharded()) {
      Split split = split_of(tensors_[i], placements[dim_], dim_, mesh);
      std::vector<int64_t> sizes = split.padded(impl->local()).sizes().vec();
      at::Tensor rows = next(sizes);
      sizes.insert(sizes.begin(), received.size(0));
      local = split.joined(rows.reshape(sizes));
    } else if (targets_[i].is_sharded()) {
      Split split = split_of(tensors_[i], targets_[i], dim_, mesh);
      std::vector<int64_t> sizes =
          split.padded(split.part(impl->local(), mesh.coordinate(dim_))).sizes().vec();
      local = split.unpadded(next(sizes).view(sizes), mesh.coordinate(dim_));
    } else {
      std::vector<int64_t> sizes = impl->local().sizes().vec();
      local = next(sizes).view(sizes);
    }
    placements[dim_] = targets_[i];
    Geometry geometry = contiguous_geometry(tensors_[i].sizes());
    results.push_back(wrap(laid_out(local, geometry), placements, impl->mesh(), geometry));
  }
  return results;
}

}  // namespace redco
