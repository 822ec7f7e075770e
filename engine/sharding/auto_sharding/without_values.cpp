// Runs operators for their shapes alone.

#include "without_values.h"

#include "../call/on_meta.h"

#include <redco/sharding.h>

#include <ATen/ops/empty_strided.h>

#include <utility>

namespace redco::sharding {

at::Tensor whole_meta(const at::Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(),
                           at::TensorOptions(tensor.dtype()).device(at::kMeta));
}

WithoutValues::WithoutValues(std::shared_ptr<const Mesh> mesh) : mesh_(std::move(mesh)) {}

// Replaces arguments that are already sharded over the real mesh: their parts differ between
// processes, but all processes must decide alike.
void WithoutValues::before(Call& call) {
  for (TensorArgument& argument : call.tensors) {
    if (!argument.impl || argument.impl->mesh() == mesh_) continue;
    argument.tensor = shard(whole_meta(argument.tensor), mesh_, argument.placements);
    argument.impl = sharded_impl(argument.tensor);
    argument.placements = argument.impl->placements();
  }
  if (call.mesh) call.mesh = mesh_;
}

void WithoutValues::run(const Call& call, const CallPlan& plan, torch::jit::Stack& local) {
  if (call.op.name == "aten::_local_scalar_dense") {
    local = {at::Scalar(1)};  // no placement depends on the value
    return;
  }
  if (FlopFormula flops = call.op.facts.flops)
    flops_ += flops(c10::ArrayRef<const c10::IValue>(local.data(), local.size()));
  call_without_values(local, [&](torch::jit::Stack& stack) { call_on(call, plan, stack); });
}

void WithoutValues::after(const Call&, const CallPlan&, c10::ArrayRef<c10::IValue>) { ++n_calls_; }

}  // namespace redco::sharding
