#include "results.h"

#include "rules/rules.h"

#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/function.h>

#include <optional>

namespace redco {

Geometry geometry_of(const OutputPlan& plan, const at::Tensor& local) {
  if (plan.geometry) return *plan.geometry;
  Sizes sizes(local.sizes());
  for (size_t dim = 0; dim < plan.sizes.size(); ++dim)
    if (plan.sizes[dim] >= 0) sizes[dim] = plan.sizes[dim];
  return logical_geometry(sizes, plan.placements, local);
}

c10::IValue Results::wrapped(c10::IValue value) {
  if (value.isTensor()) return wrapped(value.toTensor());
  if (!value.isTensorList()) return value;
  c10::List<at::Tensor> list;
  for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(wrapped(tensor));
  return list;
}

void Results::skip(const c10::IValue& written) {
  next_ += written.isTensorList() ? written.toTensorVector().size() : 1;
}

bool is_split_along_sequence(at::IntArrayRef sizes, const Placements& placements,
                             const Mesh& mesh) {
  return mesh.sequence_parallel() && placements[Mesh::mp].is_partial() && sizes.size() == 3 &&
         sizes[1] >= mesh.size(Mesh::mp);
}

at::Tensor Results::wrapped(at::Tensor local) {
  static const OutputPlan whole;
  const OutputPlan& plan = next_ < plan_.outputs.size() ? plan_.outputs[next_] : whole;
  ++next_;
  if (!local.defined()) return local;
  Geometry geometry = geometry_of(plan, local);
  Placements placements = plan.placements;
  if (geometry.sizes.empty()) reduce(local, placements);
  // In backward a gradient stays a sum: that of several products with one activation is reduced
  // once, where it meets the activation.
  if (is_split_along_sequence(geometry.sizes, placements, *call_.mesh) &&
      !torch::autograd::get_current_node()) {
    Placements split = placements;
    split[Mesh::mp] = Placement::shard(1);
    local = redistribute_local(local, geometry.sizes, placements, split, *call_.mesh);
    placements = split;
    geometry = dense_geometry(geometry.sizes, local);
  }
  if (!call_.op.is_view) return wrap(std::move(local), placements, call_.mesh, geometry);
  // In inference mode a view of a tensor from outside is none of that mode's.
  std::optional<c10::InferenceMode> mode;
  if (c10::InferenceMode::is_enabled()) mode.emplace(call_.tensors[0].tensor.is_inference());
  at::Tensor result = wrap(std::move(local), placements, call_.mesh, geometry);
  be_view(*sharded_impl(result));
  return result;
}

// A number is read by `item`, which one process may call alone.
void Results::reduce(at::Tensor& local, Placements& placements) {
  if (is_replicated(placements)) return;
  local = redistribute_local(local, {}, placements, {}, *call_.mesh);
  placements = {};
}

void Results::be_view(ShardedTensorImpl& result) {
  ShardedTensorImpl* base = call_.tensors[0].impl;
  if (!base) return;
  bool is_view =
      plan_.inputs[0] == call_.tensors[0].placements && result.local().is_alias_of(base->local());
  if (is_view) result.be_view_of(*base);
  if (!is_view || base->is_copy_of_view()) result.mark_copy_of_view();
}

}  // namespace redco
