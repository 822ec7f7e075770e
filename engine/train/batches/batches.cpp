#include "batches.h"

#include "../../optim/log_actions.h"
#include "local_batch.h"

#include <redco/error.h>
#include <redco/sharding.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/masked_fill.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <numeric>

namespace redco::train {

namespace {

// A copy to a GPU from other memory would make the host wait until the GPU has done all earlier
// steps.
at::Tensor through_pinned_memory(const at::Tensor& tensor, at::Device device) {
  bool is_pinned = device.is_cuda() && tensor.is_cpu();
  return (is_pinned ? tensor.pin_memory() : tensor).to(device, /*non_blocking=*/is_pinned);
}

}  // namespace

at::Device device_of(const Tree& tree) {
  auto tensors = named_tensors(tree);
  return tensors.empty() ? at::Device(at::kCPU) : tensors.front().second.device();
}

Tree to_device(Tree tree, at::Device device) {
  bool is_there = true;
  for_each_leaf(tree, [&](const std::string&, const Tree& leaf) {
    is_there &= !leaf.is_tensor() || leaf.tensor().device() == device;
  });
  if (is_there) return tree;
  return map_tensors(tree, [&](const std::string&, const at::Tensor& tensor) {
    return tensor.to(device, /*non_blocking=*/device.type() != at::kCPU);
  });
}

Tree own_batch(const Tree& batch, at::Device device) {
  return map_tensors(batch, [&](const std::string&, const at::Tensor& tensor) {
    at::Tensor moved = through_pinned_memory(tensor, device);
    return moved.is_same(tensor) ? tensor.clone() : moved;
  });
}

Placements placements_of_rows(const std::string& path, const at::Tensor& tensor,
                              const ContextDims& context_dims, const Mesh& mesh) {
  Placements placements = placements_on(Mesh::batch, Placement::shard(0));
  if (mesh.size(Mesh::context) == 1) return placements;
  auto named = context_dims.find(path);
  bool is_named = named != context_dims.end();
  std::optional<int64_t> dim = is_named ? named->second : std::optional<int64_t>(1);
  require(!is_named || !dim || (*dim > 0 && *dim < tensor.dim()), "context_dims: '", path,
          "' of the batch has the shape ", tensor.sizes(), " and no positions in dimension ",
          dim.value_or(0));
  // With fewer positions than shards, some shards would be empty.
  if (dim && *dim < tensor.dim() && tensor.size(*dim) >= mesh.size(Mesh::context))
    for (Mesh::Dim split : Mesh::dims_of(Mesh::context)) placements[split] = Placement::shard(*dim);
  return placements;
}

Tree in_dtype(const Tree& tree, at::ScalarType dtype) {
  bool is_so = true;
  for_each_leaf(tree, [&](const std::string&, const Tree& leaf) {
    is_so &= !leaf.is_tensor() || !leaf.tensor().is_floating_point() ||
             leaf.tensor().scalar_type() == dtype;
  });
  if (is_so) return tree;
  return map_tensors(tree, [&](const std::string&, const at::Tensor& tensor) {
    return tensor.is_floating_point() ? tensor.to(dtype) : tensor;
  });
}

void take_back(const Tree& masters, const Tree& copies) {
  at::NoGradGuard no_grad;
  auto kept = named_tensors(masters), written = named_tensors(copies);
  for (size_t i = 0; i < kept.size(); ++i) {
    at::Tensor &master = kept[i].second, &copy = written[i].second;
    if (master.requires_grad() || !master.is_floating_point() || copy.is_same(master)) continue;
    // Batch normalization does not increment the version for its writes, so vectors are always
    // compared. Unchanged elements keep their full precision.
    if (copy._version() > 0 || master.dim() <= 1)
      master.copy_(
          at::where(copy.eq(master.to(copy.scalar_type())), master, copy.to(master.scalar_type())));
  }
}

void check_examples(const char* what, const Dataset& examples) {
  require(examples.size > 0, what, ": the set of examples is empty");
  require(bool(examples.collate), what, ": the dataset has no collate function");
}

Tree make_batch(const Dataset& examples, std::span<const int64_t> indices, Collate collate,
                at::Device device, const std::shared_ptr<Mesh>& mesh) {
  if (collate == Collate::local && mesh->size(Mesh::batch) > 1)
    return local_batch(examples, indices, device, mesh);
  Tree batch = examples.collate(std::vector<int64_t>(indices.begin(), indices.end()));
  if (mesh->world().size() == 1) return own_batch(batch, device);
  log_batch(batch);
  return map_tensors(batch, [&](const std::string& path, const at::Tensor& tensor) {
    bool is_split = tensor.dim() > 0 && tensor.size(0) == int64_t(indices.size());
    return shard(
        through_pinned_memory(tensor, device), mesh,  // copies this process's part
        is_split ? placements_of_rows(path, tensor, examples.context_dims, *mesh) : Placements());
  });
}

Tree layout_batch(const Dataset& examples, int64_t per_device_batch_size, Collate collate,
                  at::Device device, const Deployer& deployer) {
  auto [local, global] = deployer.get_local_global_micro_batch_size(per_device_batch_size);
  int64_t n = std::min(examples.size, collate == Collate::local ? local : global);
  return to_device(examples.collate(index_range(0, n)), device);
}

Tree copied(const Tree& tree) {
  return map_tensors(tree,
                     [](const std::string&, const at::Tensor& tensor) { return tensor.clone(); });
}

Tree gathered(const Tree& tree) {
  return map_tensors(tree,
                     [](const std::string&, const at::Tensor& tensor) { return full(tensor); });
}

bool is_ratio(const at::Tensor& metric) { return metric.dim() == 1 && metric.size(0) == 2; }

at::Tensor divisor(const at::Tensor& weight_sum) {
  return weight_sum.masked_fill(weight_sum == 0, 1);
}

std::vector<int64_t> index_range(int64_t first, int64_t last) {
  std::vector<int64_t> indices(size_t(last - first));
  std::iota(indices.begin(), indices.end(), first);
  return indices;
}

}  // namespace redco::train
