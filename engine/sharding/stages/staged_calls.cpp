#include "staged_calls.h"

#include "moves.h"
#include "running_pass.h"

#include <redco/error.h>
#include <redco/group.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <string>

namespace redco::sharding {

namespace {

at::Tensor as_tensor(const c10::IValue& value) {
  if (value.isBool()) return at::tensor(int64_t(value.toBool()));
  if (value.isInt()) return at::tensor(value.toInt());
  return at::tensor(value.toScalar().toComplexDouble());
}

c10::IValue like(const c10::IValue& value, const at::Tensor& tensor) {
  if (value.isBool()) return tensor.item<int64_t>() != 0;
  if (value.isInt()) return tensor.item<int64_t>();
  const c10::complex<double> number = tensor.item<c10::complex<double>>();
  if (value.isComplexDouble()) return number;
  return number.real();
}

}  // namespace

std::string name_of_stage(int64_t stage, const Mesh& run) {
  const std::string chunks = run.n_chunks_per_stage() > 1 ? " * n_chunks_per_stage = " : " = ";
  return "stage " + std::to_string(stage) + " of n_pipeline_stages" + chunks +
         std::to_string(run.n_stages());
}

bool has_shape_of_values(const Call& call) {
  if (!call.op.handle.hasTag(at::Tag::dynamic_output_shape)) return false;
  return !call.op.facts.has_known_shape || !call.op.facts.has_known_shape(call);
}

void put_on_stage(Call& call) {
  int64_t last = *call.mesh->stage();
  for (const TensorArgument& argument : call.tensors)
    if (argument.impl) last = std::max(last, argument.impl->mesh()->stage().value_or(last));
  const std::shared_ptr<const Mesh> run = call.mesh->of_run();
  call.mesh = call.mesh->of_stage(last);
  require(!has_shape_of_values(call), call.op.name, ": the shape of its result depends on values ",
          "that only ", name_of_stage(last, *run),
          " has. Keep the shape, as torch.where or a mask does");
  for (TensorArgument& argument : call.tensors) {
    const auto stage = argument.impl ? argument.impl->mesh()->stage() : std::nullopt;
    const bool is_of_all = !stage || is_of_all_stages(*argument.impl);
    if (stage == last && !(argument.is_written && is_of_all)) continue;
    require(!argument.is_written, call.op.name, ": writes values of ", name_of_stage(last, *run),
            " to a tensor that ",
            is_of_all ? "all processes have" : "stage " + std::to_string(*stage) + " has",
            ". Make a new tensor (torch.cat, torch.stack, x + y), or make it from a tensor of "
            "that stage (x:new_zeros)");
    if (!stage && !argument.impl && argument.tensor.dim() == 0) continue;  // a wrapped number
    require(!resting_stage_of(argument.tensor), call.op.name, ": a parameter of stage ",
            resting_stage_of(argument.tensor).value_or(0), in_transform(*run));
    argument.tensor = stage ? moved_within_call(argument.tensor, last)
                            : seen_by_stage(argument.tensor, call.mesh);
    argument.impl = sharded_impl(argument.tensor);
    argument.placements = argument.impl->placements();
  }
}

void share_values(const Call& call, torch::jit::Stack& results) {
  for (c10::IValue& value : results) {
    if (value.isTensor() || value.isTensorList() || value.isNone()) continue;
    if (!value.isScalar()) continue;
    value = like(value, on_all_stages(as_tensor(value).to(call.mesh->device()), *call.mesh).cpu());
  }
}

}  // namespace redco::sharding
