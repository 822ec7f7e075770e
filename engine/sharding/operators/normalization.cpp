// Rules for normalization within each example: layer, RMS, group and weight norm.

#include "rules.h"

namespace redco::sharding {

namespace {

// Factors for the first `n` dimensions; the others must not be split.
Letters leading(int64_t n_dims, int64_t n) {
  Letters result(size_t(n_dims), int8_t(-1));
  for (int64_t dim = 0; dim < n; ++dim) result[size_t(dim)] = int8_t(dim);
  return result;
}

// x: [leading ..., normalized ...]; statistics: [leading ..., 1 ...]; weights: [normalized ...].
// The gradients of the weights are sums over the leading dimensions.
struct LayerLetters {
  explicit LayerLetters(const Call& call) {
    int64_t n_dims = call.tensors[size_t(call.tensor_of("input"))].tensor.dim();
    auto n = int64_t(call.find("normalized_shape")->toIntVector().size());
    x = leading(n_dims, n_dims - n);
    weight = leading(n, 0);
  }
  Letters x, weight;
};

std::optional<CallPlan> layer_norm(const Call& call) {
  LayerLetters l(call);
  auto factors = named_factors(call, {{"input", l.x}, {"weight", l.weight}, {"bias", l.weight}},
                               {l.x, l.x, l.x});
  if (!factors) return std::nullopt;
  return plan_by_factors(call, *factors);
}

std::optional<CallPlan> layer_norm_backward(const Call& call) {
  LayerLetters l(call);
  auto factors = named_factors(call,
                               {{"grad_out", l.x},
                                {"input", l.x},
                                {"mean", l.x},
                                {"rstd", l.x},
                                {"weight", l.weight},
                                {"bias", l.weight}},
                               {l.x, l.weight, l.weight});
  if (!factors) return std::nullopt;
  CallPlan plan = plan_by_factors(call, *factors);
  plan.run = run_on_contiguous;  // the kernel ignores the strides of the statistics
  return plan;
}

// input: [n, c, ...]; statistics: [n, group]. Channels may be split between groups only.
std::optional<CallPlan> group_norm_plan(const Call& call, bool is_backward) {
  const TensorArgument& input = call.tensors[size_t(call.tensor_of("input"))];
  Letters x = leading(input.tensor.dim(), 2), weight = {channel}, statistics = {batch, channel};
  std::vector<Letters> outputs = {x, statistics, statistics};
  if (is_backward) outputs = {x, weight, weight};
  auto factors = named_factors(call,
                               {{"grad_out", x},
                                {"input", x},
                                {"mean", statistics},
                                {"rstd", statistics},
                                {"weight", weight},
                                {"bias", weight}},
                               outputs);
  if (!factors) return std::nullopt;
  int64_t n_groups = call.integer("group", 1);
  if (!splits_evenly(call, *factors, channel, n_groups)) factors->whole |= 1 << channel;
  CallPlan plan = plan_by_factors(call, *factors);

  Sizes all(input.sizes().begin(), input.sizes().end());
  Sizes local = local_sizes(all, plan.inputs[size_t(call.tensor_of("input"))], *call.mesh);
  set_argument(call, plan, "N", local[batch]);
  set_argument(call, plan, "C", local[channel]);
  set_argument(call, plan, "group", n_groups * local[channel] / all[channel]);
  plan.outputs[0].sizes = all;
  // The kernels need dense tensors in one memory order, which redistributed tensors may not have.
  // Only that of the CPU takes channels-last ones.
  plan.run = [input_argument = input.argument](const Operator& op, torch::jit::Stack& stack,
                                               const Mesh&) {
    const at::Tensor& x = stack[input_argument].toTensor();
    at::MemoryFormat order = x.is_cpu() ? x.suggest_memory_format() : at::MemoryFormat::Contiguous;
    for (c10::IValue& value : stack)
      if (value.isTensor() && value.toTensor().defined())
        value = value.toTensor().contiguous(
            value.toTensor().dim() > 2 ? order : at::MemoryFormat::Contiguous);
    op.handle.callBoxed(&stack);
  };
  for (size_t i : {1, 2})
    plan.outputs[i].sizes = is_backward ? Sizes{all[channel]} : Sizes{all[batch], n_groups};
  return plan;
}

// Weights as direction and length. Slices along dimension `dim` are independent.
std::optional<CallPlan> weight_norm(const Call& call) {
  auto n_dims = size_t(call.tensors[0].tensor.dim());
  Letters all(n_dims, int8_t(-1));
  auto dim = size_t(call.dims("dim", int64_t(n_dims))->front());
  all[dim] = 0;
  Factors factors;
  for (const TensorArgument& argument : call.tensors) {
    if (argument.tensor.dim() != int64_t(n_dims)) return std::nullopt;
    factors.inputs.push_back(all);
  }
  factors.outputs = {all, all};
  if (!all_ranks_hold(call, factors, 0, call.tensors[0].sizes()[dim])) factors.whole = 1;
  CallPlan plan = plan_by_factors(call, factors);
  plan.run = run_on_contiguous;
  return plan;
}

std::optional<CallPlan> group_norm(const Call& call) { return group_norm_plan(call, false); }
std::optional<CallPlan> group_norm_backward(const Call& call) {
  return group_norm_plan(call, true);
}

}  // namespace

const RuleTable& normalization_rules() {
  static const RuleTable table = {
      {"aten::native_layer_norm", with_cost(layer_norm, {.starts = 2})},
      {"aten::native_layer_norm_backward",
       with_cost(layer_norm_backward, {.passes = 3, .starts = 2.3})},
      {"aten::_fused_rms_norm", with_cost(layer_norm, {.starts = 2})},
      {"aten::_fused_rms_norm_backward",
       with_cost(layer_norm_backward, {.passes = 3, .starts = 2.3})},
      {"aten::_weight_norm_interface", weight_norm},
      {"aten::_weight_norm_interface_backward", weight_norm},
      {"aten::native_group_norm", with_cost(group_norm, {.passes = 2.5, .starts = 4})},
      {"aten::native_group_norm_backward",
       with_cost(group_norm_backward, {.passes = 4.5, .starts = 5})},
  };
  return table;
}

}  // namespace redco::sharding
