// Rules for new_empty and the like, and for operators that change a tensor's storage.

#include "rules.h"

#include <redco/error.h>

#include <algorithm>
#include <numeric>

namespace redco::sharding {

namespace {

// Sets the local sizes, and if strides are given, local strides in the same memory order.
void ask_for_part(const Call& call, CallPlan& plan, at::IntArrayRef sizes) {
  Sizes local = local_sizes(sizes, plan.outputs[0].placements, *call.mesh);
  plan.arguments.emplace_back(call.index_of("size"),
                              std::vector<int64_t>(local.begin(), local.end()));
  const c10::IValue* given = call.find("stride");
  if (!given) return;
  std::vector<int64_t> strides = given->toIntVector();
  plan.outputs[0].geometry = Geometry{Sizes(sizes), Sizes(strides), 0};
  std::vector<size_t> order(strides.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return strides[a] < strides[b]; });
  int64_t stride = 1;
  for (size_t dim : order) {
    strides[dim] = stride;
    stride *= std::max<int64_t>(local[dim], 1);
  }
  plan.arguments.emplace_back(call.index_of("stride"), strides);
}

// A new tensor with the sizes of `model` gets its placements, because the new tensor is usually
// filled from `model`. The values of `model` are not read, so it is not reduced if it is partial.
// `is_sum`: whether the new values may be partial too.
Rule like(bool is_sum) {
  return [is_sum](const Call& call) -> std::optional<CallPlan> {
    const TensorArgument& model = call.tensors[0];
    if (call.tensors.size() > 1) return std::nullopt;
    CallPlan plan;
    plan.inputs = {model.placements};
    OutputPlan& output = plan.outputs.emplace_back();
    std::vector<int64_t> sizes = call.find("size")->toIntVector();
    if (model.sizes() != sizes) return plan;
    output.placements = model.placements;
    output.sizes = Sizes(sizes.begin(), sizes.end());
    for (Placement& placement : output.placements)
      if (placement.is_partial() && !is_sum) placement = {};
    ask_for_part(call, plan, sizes);
    return plan;
  };
}

std::optional<CallPlan> resize(const Call& call) {
  const TensorArgument& tensor = call.tensors[0];
  std::vector<int64_t> sizes = call.find("size")->toIntVector();
  require(!is_split(tensor.placements) || tensor.sizes() == sizes, "resize_: a tensor of shape ",
          tensor.sizes(), " laid out as ", to_string(tensor.placements), " cannot become ", sizes,
          ": its parts would move between the processes. Make a new tensor");
  CallPlan plan;
  plan.inputs = {tensor.placements};
  plan.outputs.push_back({tensor.placements, Sizes(tensor.sizes()), std::nullopt});
  if (is_split(tensor.placements)) ask_for_part(call, plan, sizes);
  return plan;
}

std::optional<CallPlan> refuse_set(const Call& call) {
  fail("set_: a sharded tensor and another cannot share memory; copy the values with copy_");
}

}  // namespace

const RuleTable& storage_rules() {
  static const RuleTable table = {
      {"aten::new_empty", like(true)}, {"aten::new_empty_strided", like(true)},
      {"aten::new_zeros", like(true)}, {"aten::new_ones", like(false)},
      {"aten::new_full", like(false)}, {"aten::resize", resize},
      {"aten::set", refuse_set},
  };
  return table;
}

}  // namespace redco::sharding
