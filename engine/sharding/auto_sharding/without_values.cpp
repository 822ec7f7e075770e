// Runs operators for their shapes alone.

#include "without_values.h"

#include "../call/map_tensors.h"

#include <redco/sharding.h>

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>

#include <utility>

namespace redco::sharding {

namespace {

// Zeros; kernels may check the strides.
at::Tensor with_any_values(const at::Tensor& tensor) {
  if (!tensor.is_meta()) return tensor;
  at::TensorOptions options = tensor.options().device(at::kCPU);
  if (!tensor.is_non_overlapping_and_dense()) return at::zeros(tensor.sizes(), options);
  return at::empty_strided(tensor.sizes(), tensor.strides(), options).zero_();
}

}  // namespace

void call_without_values(torch::jit::Stack& stack,
                         const std::function<void(torch::jit::Stack&)>& function) {
  for (c10::IValue& value : stack) map_tensors(value, on_meta);
  torch::jit::Stack again = stack;
  // A copy to another dtype names the device, too.
  for (c10::IValue& value : stack)
    if (value.isDevice()) value = c10::Device(c10::kMeta);
  try {
    function(stack);
    return;
  } catch (const c10::Error&) {
    // Some operators compute shapes together with values: run all of the call on zeros, which fit
    // each other. Zeros for each operator alone would not, such as labels and what is in their
    // range.
    stack = std::move(again);
  }
  for (c10::IValue& value : stack) map_tensors(value, with_any_values);
  function(stack);
  for (c10::IValue& value : stack) map_tensors(value, on_meta);
}

at::Tensor whole_meta(const at::Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(),
                           at::TensorOptions(tensor.dtype()).device(at::kMeta));
}

WithoutValues::WithoutValues(std::shared_ptr<const Mesh> mesh) : mesh_(std::move(mesh)) {}

// Replaces arguments that were sharded before, over the real mesh. Their parts differ between
// processes, which must all decide alike.
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
  call_without_values(local, [&](torch::jit::Stack& stack) {
    if (plan.run)
      plan.run(call.op, stack, *call.mesh);
    else
      call.op.handle.callBoxed(&stack);
  });
}

void WithoutValues::after(const Call&, const CallPlan&, c10::ArrayRef<c10::IValue>) { ++n_calls_; }

}  // namespace redco::sharding
