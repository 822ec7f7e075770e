// Redistributes several tensors in one collective.

#include <redco/detail/coalesced.h>

#include "sharded_tensor.h"
#include "split.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <utility>

namespace redco {

using namespace sharding;

namespace {

Split split_of(at::IntArrayRef sizes, const Placement& placement, Mesh::Dim dim, const Mesh& mesh) {
  return Split(placement, sizes[size_t(placement.dim)], mesh.size(dim));
}

// Returns a tensor's row of the buffer. The row of a rank joins its parts of all tensors.
at::Tensor row_of(const at::Tensor& part) { return part.reshape({-1}); }

// Tensors of several dtypes are gathered as bytes.
bool have_one_dtype(const std::vector<at::Tensor>& tensors) {
  return std::ranges::all_of(tensors, [&](const at::Tensor& tensor) {
    return tensor.scalar_type() == tensors[0].scalar_type();
  });
}

}  // namespace

CoalescedChange start_change(const std::vector<at::Tensor>& tensors,
                             const std::vector<Placement>& targets, Mesh::Dim dim) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  CoalescedChange change;
  change.dim_ = dim;
  change.mesh_ = sharded_impl(tensors[0])->mesh();
  const Mesh& mesh = *change.mesh_;
  std::vector<at::Tensor> sent;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Placements& placements = sharded_impl(tensors[i])->placements();
    Placements outer;
    std::copy_n(placements.begin(), size_t(dim), outer.begin());
    const Sizes sizes = local_sizes(tensors[i].sizes(), outer, mesh);
    at::Tensor part = sharded_impl(tensors[i])->local();
    at::IntArrayRef received;
    if (placements[dim].is_sharded()) {
      part = split_of(sizes, placements[dim], dim, mesh).padded(part);
      sent.push_back(row_of(part));
      received = part.sizes();
    } else if (targets[i].is_sharded()) {
      part = split_of(sizes, targets[i], dim, mesh).parts(part);
      sent.push_back(part.flatten(1));
      received = part.sizes().slice(1);
    } else {
      sent.push_back(row_of(part));
      received = part.sizes();
    }
    change.members_.push_back({tensors[i].sizes().vec(),
                               {sizes.begin(), sizes.end()},
                               placements,
                               targets[i],
                               received.vec(),
                               part.scalar_type()});
  }
  const Placement& from = change.members_[0].placements[dim];
  Group& group = mesh.group(dim);
  if (from.is_sharded()) {
    change.is_bytes_ = !have_one_dtype(sent);
    if (change.is_bytes_)
      for (at::Tensor& row : sent) row = row.view(at::kByte);
    change.pending_ = group.start_all_gather(at::cat(sent));
  } else if (targets[0].is_sharded()) {
    change.pending_ = group.start_reduce_scatter(at::cat(sent, 1), from.op);
  } else {
    change.pending_ = group.start_all_reduce(at::cat(sent), from.op);
  }
  return change;
}

std::vector<at::Tensor> CoalescedChange::wait() {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::Tensor received = pending_->wait();
  std::vector<at::Tensor> results;
  int64_t offset = 0;
  for (Member& member : members_) {
    int64_t length = c10::multiply_integers(member.received);
    if (is_bytes_) length *= int64_t(c10::elementSize(member.dtype));
    at::Tensor local = received.narrow(-1, offset, length);
    offset += length;
    // Clones the part, because a clone is aligned.
    if (is_bytes_) local = local.clone(at::MemoryFormat::Contiguous).view(member.dtype);
    if (member.placements[dim_].is_sharded()) {
      std::vector<int64_t> sizes = member.received;
      sizes.insert(sizes.begin(), received.size(0));
      local = split_of(member.extents, member.placements[dim_], dim_, *mesh_)
                  .joined(local.reshape(sizes));
    } else {
      local = local.view(member.received);
      if (member.target.is_sharded())
        local = split_of(member.extents, member.target, dim_, *mesh_)
                    .unpadded(local, mesh_->coordinate(dim_));
    }
    member.placements[dim_] = member.target;
    Geometry geometry = contiguous_geometry(member.sizes);
    results.push_back(wrap(laid_out(local, geometry), member.placements, mesh_, geometry));
  }
  if (outer_.empty()) return results;
  CoalescedChange next =
      start_change(results, std::vector<Placement>(results.size()), outer_.back());
  next.outer_.assign(outer_.begin(), outer_.end() - 1);
  return next.wait();
}

CoalescedChange start_gather(const std::vector<at::Tensor>& tensors, std::vector<Mesh::Dim> dims) {
  CoalescedChange change =
      start_change(tensors, std::vector<Placement>(tensors.size()), dims.back());
  dims.pop_back();
  change.outer_ = std::move(dims);
  return change;
}

}  // namespace redco
