// Traces a forward pass, and the step it belongs to, without values.

#include "layout_search.h"

#include <redco/error.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <exception>

namespace redco::sharding {

namespace {

// The part of the first rank of a parameter, without values.
at::Tensor part_without_values(const TracedParameter& parameter,
                               const std::shared_ptr<const Mesh>& mesh) {
  Placements placements;
  placements[Mesh::mp] = parameter.placement.value_or(Placement());
  Geometry whole = dense_geometry(parameter.given.sizes(), parameter.given.strides());
  Sizes sizes = local_sizes(parameter.given.sizes(), placements, *mesh);
  at::Tensor local =
      at::empty_strided(sizes, dense_geometry(sizes, parameter.given.strides()).strides,
                        at::TensorOptions(parameter.given.dtype()).device(at::kMeta));
  return wrap(local, placements, mesh, whole);
}

Placements on_all_model_ranks(const at::Tensor& tensor) {
  Placements placements = placements_of(tensor);
  placements[Mesh::mp] = {};
  return placements;
}

Traffic sent(const Mesh& mesh) {
  Traffic all;
  for (const Traffic& kind : mesh.group(Mesh::mp).counters()) {
    all.count += kind.count;
    all.bytes += kind.bytes;
  }
  return all;
}

}  // namespace

int64_t bytes_of_part(const at::Tensor& parameter, const Placement& placement, int64_t n_ranks) {
  auto bytes = int64_t(parameter.nbytes());
  if (!placement.is_sharded() || bytes == 0) return bytes;
  int64_t size = parameter.size(placement.dim), longest = 0;
  for (int64_t rank = 0; rank < n_ranks; ++rank)
    longest = std::max(longest, placement.part_length(size, n_ranks, rank));
  return bytes / size * longest;
}

WatchedForward::Layout WatchedForward::follow(std::vector<TracedParameter> decided) {
  // Each round corrects at least one parameter, and no correction repeats.
  for (size_t round = 0; round <= 2 * decided.size(); ++round) {
    Layout found{decided};
    ForwardWatcher watcher(found.parameters, mesh_);
    found.is_complete = watch([&](int parameter) { return watcher.stand_in(parameter); });
    n_calls_ += watcher.n_calls();
    found.experts = watcher.experts();
    if (!found.is_complete) {
      for (TracedParameter& parameter : found.parameters)
        if (!parameter.placement) parameter.reason = "not used before the trace ended: whole";
      return found;
    }
    const auto corrections = watcher.corrections();
    if (corrections.empty()) {
      found.suspects = watcher.suspects();
      found.partners = watcher.partners();
      found.pairs = watcher.pairs().all();
      found.moved_together = watcher.moved_together();
      found.sources_of_streams = watcher.streams().sources();
      found.splits_in_views = watcher.splits_in_views();
      return found;
    }
    for (const auto& [index, correction] : corrections) {
      decided[size_t(index)].placement = correction.placement;
      decided[size_t(index)].reason = correction.reason;
      decided[size_t(index)].was_corrected = true;
    }
  }
  return {std::move(decided)};
}

std::optional<WatchedForward::StepCost> WatchedForward::cost(
    const std::vector<TracedParameter>& parameters) {
  // A function that is planned before it is trained may have parameters without gradients.
  const bool trains_some = std::ranges::any_of(
      parameters, [](const auto& parameter) { return parameter.given.requires_grad(); });
  std::vector<at::Tensor> inputs;
  const Traffic before = sent(*mesh_);
  Traffic after;
  WithoutValues without_values(mesh_);
  struct SequenceParallel {
    Mesh& mesh;
    ~SequenceParallel() { mesh.set_sequence_parallel(false); }
  } sequence_parallel{*mesh_};
  mesh_->set_sequence_parallel(is_sequence_parallel);
  try {
    at::AutoGradMode with_gradients(true);
    const Tree used = forward_(stand_ins([&](int index) {
      const at::Tensor& given = parameters[size_t(index)].given;
      at::Tensor part = part_without_values(parameters[size_t(index)], mesh_);
      if (given.requires_grad() || (!trains_some && given.is_floating_point()))
        inputs.push_back(part.set_requires_grad(true));
      return part;
    }));
    std::vector<at::Tensor> losses, gradients;
    for (const auto& [path, tensor] : named_tensors(used)) {
      if (tensor.requires_grad()) losses.push_back(tensor.sum());
      if (is_sharded(tensor)) redistribute(tensor.detach(), on_all_model_ranks(tensor));
    }
    if (!losses.empty()) gradients = torch::autograd::grad(losses, inputs, {}, false, false, true);
    after = sent(*mesh_);
    // The gradients of whole parameters are reduced together, so their collectives do not count.
    const int64_t n_collectives = after.count;
    for (size_t i = 0; i < gradients.size(); ++i)
      if (gradients[i].defined()) redistribute(gradients[i], placements_of(inputs[i]));
    after = sent(*mesh_);
    after.count = n_collectives;
  } catch (const Interrupted&) {
    throw;
  } catch (const std::exception&) {
    return std::nullopt;
  }
  n_calls_ += without_values.n_calls();
  return StepCost{double(after.bytes - before.bytes), after.count - before.count,
                  without_values.flops()};
}

bool WatchedForward::watch(const std::function<at::Tensor(int parameter)>& stand_in) {
  try {
    forward_(stand_ins(stand_in));
    return true;
  } catch (const Interrupted&) {
    throw;
  } catch (const std::exception& error) {
    if (!runs_alone_) {
      WithExecution on_parts(nullptr);
      at::AutoGradMode with_gradients(true);
      forward_(copies());
      runs_alone_ = true;
      TORCH_WARN("The sharding of the parameters was decided from the part of ",
                 "the function that ran on tensors without values; it failed there: ", error.what(),
                 "\nParameters used later stay whole; sharding rules can split them");
    }
    return false;
  }
}

Tree WatchedForward::copies() const {
  std::map<const void*, at::Tensor> made;  // tied weights stay tied
  return map_tensors(params_, [&](const std::string&, const at::Tensor& tensor) {
    at::Tensor& copy = made[tensor.unsafeGetTensorImpl()];
    if (!copy.defined()) copy = tensor.detach().clone().set_requires_grad(tensor.requires_grad());
    return copy;
  });
}

Tree WatchedForward::stand_ins(const std::function<at::Tensor(int parameter)>& make) const {
  std::map<int, at::Tensor> made;  // tied weights stay tied
  return map_tensors(params_, [&](const std::string&, const at::Tensor& tensor) {
    auto place = places_.find(tensor.unsafeGetTensorImpl());
    // Clones the tensor, because a forward pass may count its calls in it.
    if (place == places_.end()) return tensor.clone();
    at::Tensor& stand_in = made[place->second];
    if (!stand_in.defined()) stand_in = make(place->second);
    return stand_in;
  });
}

}  // namespace redco::sharding
