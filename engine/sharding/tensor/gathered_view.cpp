// Keeps views of gathered tensors consistent with their bases.

#include "gathered_view.h"

#include "../call/results.h"
#include "../operators/rules.h"

#include <redco/error.h>

#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <utility>

namespace redco::sharding {

namespace {

int64_t version_of_base(const at::Tensor& base) {
  const ShardedTensorImpl& impl = *sharded_impl(base);
  if (impl.routed()) return 0;  // its local part has no writes yet, and may not exist
  const at::Tensor& local = impl.local();
  return local.is_inference() ? -1 : local._version();
}

// Returns a detached alias, so that operators that change its sizes do not change the original.
at::Tensor another(const at::Tensor& tensor) {
  return at::Tensor(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(
      c10::VariableVersion(/*version=*/0), /*allow_tensor_metadata_change=*/true));
}

}  // namespace

GatheredView::GatheredView(const Call& call, size_t result, const Placements& worked_on)
    : base_(another(call.tensors[0].stored.defined() ? call.tensors[0].stored
                                                     : call.tensors[0].tensor)),
      worked_on_(worked_on),
      op_(call.op.handle),
      arguments_(call.arguments.begin(), call.arguments.end()),
      result_(result),
      version_(version_of_base(base_)) {
  arguments_[0] = c10::IValue();
}

bool GatheredView::is_stale() const {
  const auto& source = sharded_impl(base_)->gathered_view();
  return version_ < 0 || version_ != version_of_base(base_) || (source && source->is_stale());
}

at::Tensor GatheredView::taken_anew() const { return view_of(another(base_)); }

at::Tensor GatheredView::view_of(at::Tensor base) const {
  torch::jit::Stack stack = arguments_;
  stack[0] = std::move(base);
  run_sharded(op_, &stack);
  size_t next = 0;
  for (const c10::IValue& value : stack) {
    if (value.isTensor()) {
      if (next++ == result_) return value.toTensor();
      continue;
    }
    const auto list = value.toTensorVector();
    if (result_ < next + list.size()) return list[result_ - next];
    next += list.size();
  }
  fail("a view has lost a result. Please report this");
}

std::shared_ptr<const GatheredView> GatheredView::written(ShardedTensorImpl& view) const {
  if (view.numel() == 0) return std::make_shared<GatheredView>(*this);
  ShardedTensorImpl& base = *sharded_impl(base_);
  refresh(base);
  const Mesh& mesh = *base.mesh();
  Geometry geometry = geometry_of(base_);
  Sizes sizes = local_sizes(geometry.sizes, worked_on_, mesh), held = sizes;
  // Gives expanded dimensions of the base one element here too, so that a write to any index writes
  // that element.
  for (size_t dim = 0; dim < held.size(); ++dim)
    if (geometry.strides[dim] == 0 && splitting(worked_on_, int64_t(dim)).empty() && held[dim] > 1)
      held[dim] = 1;
  Sizes strides = takes_strides(known_operator(op_))
                      ? geometry.strides
                      : dense_geometry(held, geometry.strides).strides;
  at::Tensor memory = at::empty_strided(held, strides, base.local().options()).expand(sizes);
  overwrite(memory, redistribute_local(base.local(), geometry.sizes, geometry.strides,
                                       base.placements(), worked_on_, mesh));
  const KeepsTerms keeps_terms;
  at::Tensor same = view_of(wrap(memory, worked_on_, base.mesh(), geometry));
  ShardedTensorImpl& target = *sharded_impl(same);
  // If the view is of one expert in a stack of weights, only the rank of that expert holds it.
  const bool is_elsewhere = std::ranges::any_of(Mesh::dims, [&](Mesh::Dim dim) {
    const Placement& placement = target.placements()[dim];
    return placement.is_on_rank() && placement.rank % mesh.size(dim) != mesh.coordinate(dim);
  });
  require(is_elsewhere || target.local().is_alias_of(memory), op_.schema().name(),
          ": this view is of a gathered copy, so a write to it cannot reach the tensor; write to "
          "the tensor itself");
  at::Tensor to = target.local();
  at::Tensor from = redistribute_local(view.local(), view.sizes(), view.strides(),
                                       view.placements(), target.placements(), mesh);
  overwrite(to, from);
  overwrite(base.local(), redistribute_local(memory, geometry.sizes, geometry.strides, worked_on_,
                                             base.placements(), mesh));
  note_write(base);
  auto after = std::make_shared<GatheredView>(*this);
  after->version_ = version_of_base(base_);
  return after;
}

void refresh(ShardedTensorImpl& impl) {
  const std::shared_ptr<const GatheredView> view = impl.gathered_view();
  if (!view || !view->is_stale()) return;
  BelowSharding below;
  impl.take_local_of(*sharded_impl(view->taken_anew()));
}

void note_write(ShardedTensorImpl& impl) {
  if (!impl.local().is_inference()) impl.local().unsafeGetTensorImpl()->bump_version();
  if (const std::shared_ptr<const GatheredView> view = impl.gathered_view())
    impl.set_gathered_view(view->written(impl));
}

}  // namespace redco::sharding
