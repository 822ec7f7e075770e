// Wraps the local results of an operator as sharded tensors.

#include "results.h"

#include "../operators/rules.h"
#include "../tensor/gathered_view.h"

#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

namespace redco::sharding {

namespace {

// Whether the local result matches the planned geometry. An operator may return other sizes than
// planned, such as an empty placeholder.
bool fits(const Geometry& geometry, const Placements& placements, const at::Tensor& local) {
  if (int64_t(geometry.sizes.size()) != local.dim()) return false;
  for (int64_t dim = 0; dim < local.dim(); ++dim)
    if (splitting(placements, dim).empty() && geometry.sizes[size_t(dim)] != local.size(dim))
      return false;
  return true;
}

}  // namespace

bool has_thin_parts(at::IntArrayRef sizes, const Placements& placements, const Mesh& mesh) {
  Sizes least(sizes);
  for (Mesh::Dim i : Mesh::dims) {
    const Placement& placement = placements[i];
    if (!placement.is_sharded()) continue;
    int64_t& size = least[size_t(placement.dim)];
    int64_t n_ranks = mesh.size(i), shortest = size;
    for (int64_t rank = 0; rank < n_ranks; ++rank)
      shortest = std::min(shortest, placement.part_length(size, n_ranks, rank));
    size = shortest;
    if (size < 2) return true;
  }
  return false;
}

Geometry geometry_of(const OutputPlan& plan, const at::Tensor& local, const Mesh& mesh) {
  if (plan.geometry && fits(*plan.geometry, plan.placements, local)) return *plan.geometry;
  Sizes sizes(local.sizes());
  for (size_t dim = 0; dim < plan.sizes.size(); ++dim)
    if (plan.sizes[dim] >= 0) sizes[dim] = plan.sizes[dim];
  if (is_replicated(plan.placements)) return geometry_of(local);
  if (plan.first && plan.first->sizes == sizes) return dense_geometry(sizes, plan.first->strides);
  if (plan.first || has_thin_parts(sizes, plan.placements, mesh)) return contiguous_geometry(sizes);
  return dense_geometry(sizes, local.strides());
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

namespace {
thread_local bool keeps_terms = false;
}  // namespace

KeepsTerms::KeepsTerms() : outer_(std::exchange(keeps_terms, true)) {}
KeepsTerms::~KeepsTerms() { keeps_terms = outer_; }

at::Tensor Results::wrapped(at::Tensor local) {
  static const OutputPlan whole;
  const OutputPlan& plan = next_ < plan_.outputs.size() ? plan_.outputs[next_] : whole;
  ++next_;
  if (!local.defined()) return local;
  Geometry geometry = geometry_of(plan, local, *call_.mesh);
  Placements placements = plan.placements;
  if (geometry.sizes.empty()) reduce(local, placements);
  // In backward a gradient stays partial: the gradients of several products with one activation are
  // added first and reduced once.
  const bool are_positions = !call_.op.facts.joins_rows || geometry.sizes[0] > 1;
  if (is_split_along_sequence(geometry.sizes, placements, *call_.mesh) && are_positions &&
      !keeps_terms && !torch::autograd::get_current_node()) {
    Placements split = placements;
    split[Mesh::mp] = Placement::shard(1);
    local =
        redistribute_local(local, geometry.sizes, geometry.strides, placements, split, *call_.mesh);
    placements = split;
  }
  if (!call_.op.is_view) {
    if (plan.geometry || !is_replicated(placements)) local = laid_out(local, geometry);
    at::Tensor result = wrap(std::move(local), placements, call_.mesh, geometry);
    share_memory(*sharded_impl(result));
    return result;
  }
  // A view of a normal tensor is not an inference tensor, even in inference mode.
  std::optional<c10::InferenceMode> mode;
  if (c10::InferenceMode::is_enabled()) mode.emplace(call_.tensors[0].tensor.is_inference());
  at::Tensor result = wrap(std::move(local), placements, call_.mesh, geometry);
  const TensorArgument& base = call_.tensors[0];
  if (!base.impl) return result;
  ShardedTensorImpl& view = *sharded_impl(result);
  bool is_view = plan_.inputs[0] == base.placements && view.local().is_alias_of(base.impl->local());
  if (plan_.inputs[0] == base.placements) view.view_memory_of(*base.impl);
  if (is_view) view.share_memory_of(*base.impl);
  if (!is_view || base.impl->gathered_view() || base.stored.defined()) {
    Placements worked_on = plan_.inputs[0];
    for (Placement& placement : worked_on)
      if (placement.is_partial() && geometry.sizes.empty()) placement = {};
    // A piece that the ranks joined is a copy, but of a whole tensor the result is a view: works on
    // that.
    for (Mesh::Dim dim : Mesh::dims)
      if (!is_view && worked_on[dim].is_sharded() &&
          (placements[dim].is_replicated() || plan.copied_over == dim))
        worked_on[dim] = {};
    view.set_gathered_view(std::make_shared<GatheredView>(call_, next_ - 1, worked_on));
  }
  return result;
}

// Reduces a scalar at once, because one process alone may read it with `item`.
void Results::reduce(at::Tensor& local, Placements& placements) {
  if (is_replicated(placements)) return;
  local = redistribute_local(local, {}, {}, placements, {}, *call_.mesh);
  placements = {};
}

// Some operators return memory that they read, without saying so in their schema.
void Results::share_memory(ShardedTensorImpl& result) {
  if (!result.local().has_storage()) return;
  if (is_of_lists(call_.op)) return;  // makes new tensors, maybe thousands
  for (const TensorArgument& argument : call_.tensors)
    if (argument.impl && argument.local().has_storage() &&
        result.local().is_alias_of(argument.local()))
      return result.share_memory_of(*argument.impl);
}

}  // namespace redco::sharding
