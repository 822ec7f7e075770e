#include "moves.h"

#include "../call/execution.h"
#include "../tensor/gathered_view.h"
#include "absent_stage.h"
#include "staged_calls.h"

#include <redco/moves.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>
#include <vector>

namespace redco::sharding {

namespace {

// Sends or receives the local part if one of the two stages computes here. Uses row-major order, so
// that both sides agree for any strides.
at::Tensor passed_on(const at::Tensor& local, const Geometry& geometry, const Sizes& sizes,
                     const Mesh& from, const Mesh& to, Sends& sends) {
  if (from.is_absent() && to.is_absent()) return local;
  Group& link = from.of_run()->link(*from.stage(), *to.stage());
  if (!from.is_absent()) {
    // Copies the tensor, because the script may write to it before it has been sent.
    at::Tensor sent =
        local.resolve_conj().resolve_neg().clone(at::MemoryFormat::Contiguous).view({-1});
    sends.push_back(link.start_exchange({sent.narrow(0, 0, 0), sent}, {0, 0}));
    return absent_part(sizes, local.strides(), local.scalar_type());
  }
  int64_t n = c10::multiply_integers(sizes);
  at::Tensor none = at::empty({0}, local.options().device(device_of_values(to)));
  at::Tensor received = link.exchange({none, none}, {n, 0});
  return laid_out(received.view(sizes), dense_geometry(sizes, geometry.strides));
}

}  // namespace

c10::Device device_of_values(const Mesh& mesh) {
  return execution().is_planned() ? c10::Device(c10::kMeta) : mesh.device();
}

at::Tensor absent_part(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype) {
  const WithExecution not_planned(nullptr);
  return at::empty_strided(sizes, strides, at::TensorOptions(dtype).device(at::kMeta));
}

std::optional<int64_t> stage_of(const at::Tensor& tensor) {
  ShardedTensorImpl* impl = tensor.defined() ? sharded_impl(tensor) : nullptr;
  return impl ? impl->mesh()->stage() : std::nullopt;
}

std::optional<int64_t> resting_stage_of(const at::Tensor& tensor) {
  ShardedTensorImpl* impl = tensor.defined() ? sharded_impl(tensor) : nullptr;
  if (!impl || impl->mesh()->stage()) return std::nullopt;
  const Placement& placement = impl->placements()[stages];
  return placement.is_on_rank() ? std::optional<int64_t>(placement.rank) : std::nullopt;
}

at::Tensor moved_to_stage(const at::Tensor& tensor, int64_t to, Sends& sends) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::NoGradGuard no_grad;
  Moving moving(Move::stage, "move");
  ShardedTensorImpl* impl = sharded_impl(tensor);
  if (impl->gathered_view()) refresh(*impl);
  Placements placements = impl->placements();
  for (Placement& placement : placements)
    if (placement.is_partial()) placement = {};
  const Geometry geometry = dense_geometry(tensor.sizes(), tensor.strides());
  at::Tensor local = [&] {
    OnAbsentStage on_absent_stage(*impl->mesh());
    return redistribute_local(impl->local(), tensor.sizes(), tensor.strides(), impl->placements(),
                              placements, *impl->mesh());
  }();
  const Sizes sizes = local_sizes(tensor.sizes(), placements, *impl->mesh());
  std::shared_ptr<const Mesh> at = impl->mesh();
  while (*at->stage() != to) {
    const std::shared_ptr<const Mesh> next =
        at->of_stage(*at->stage() < to ? *at->stage() + 1 : *at->stage() - 1);
    local = passed_on(local, geometry, sizes, *at, *next, sends);
    at = next;
  }
  return wrap(local, placements, at, geometry);
}

at::Tensor seen_by_stage(const at::Tensor& tensor, const std::shared_ptr<const Mesh>& stage) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  ShardedTensorImpl* impl = sharded_impl(tensor);
  if (impl && impl->gathered_view()) refresh(*impl);
  const at::Tensor& local = impl ? impl->local() : tensor;
  const Placements placements = impl ? impl->placements() : Placements();
  at::Tensor own = stage->is_absent()
                       ? absent_part(local.sizes(), local.strides(), local.scalar_type())
                       : alias_of(local);
  at::Tensor seen = wrap(own, placements, stage, geometry_of(tensor));
  if (impl) be_read_as(seen, tensor);
  return seen;
}

void be_read_as(const at::Tensor& alias, const at::Tensor& tensor) {
  sharded_impl(alias)->be_read_as(*sharded_impl(tensor));
  if (!tensor.is_inference() && !alias.is_inference())
    torch::autograd::impl::set_version_counter(alias,
                                               torch::autograd::impl::version_counter(tensor));
}

at::Tensor on_all_stages(const at::Tensor& local, const Mesh& stage) {
  check_values_are_readable(stage);
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::NoGradGuard no_grad;
  Moving moving(Move::stage, "read");
  // The other stages add 0 to each value.
  at::Tensor term = stage.is_absent()
                        ? at::zeros(local.sizes(), local.options().device(device_of_values(stage)))
                        : local.clone(at::MemoryFormat::Contiguous);
  return stage.of_run()->group(stages).all_reduce(term, ReduceOp::sum);
}

}  // namespace redco::sharding
