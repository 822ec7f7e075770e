// Rules for batch normalization, with the statistics of the whole batch if the batch is split.

#include "../tensor/memory_format.h"
#include "rules.h"

#include <ATen/OpMathType.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/var_mean.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace redco::sharding {

namespace {

// The name of an argument differs between the operators.
at::Tensor tensor_in(const Operator& op, const torch::jit::Stack& stack,
                     std::initializer_list<std::string_view> names) {
  for (size_t i = 0; i < stack.size(); ++i)
    for (std::string_view name : names)
      if (op.schema().arguments()[i].name() == name)
        return stack[i].isTensor() ? stack[i].toTensor() : at::Tensor();
  return {};
}

double number_in(const Operator& op, const torch::jit::Stack& stack,
                 std::initializer_list<std::string_view> names) {
  for (size_t i = 0; i < stack.size(); ++i)
    for (std::string_view name : names)
      if (op.schema().arguments()[i].name() == name) return stack[i].toDouble();
  return 0;
}

std::vector<int64_t> all_but_channel(const at::Tensor& input) {
  std::vector<int64_t> dims;
  for (int64_t dim = 0; dim < input.dim(); ++dim)
    if (dim != channel) dims.push_back(dim);
  return dims;
}

// Returns the type of saved statistics and of gradients by channel. On the CPU it is the type of
// the other arguments by channel.
at::ScalarType type_by_channel(const Operator& op, const torch::jit::Stack& stack,
                               const at::Tensor& input) {
  if (!input.is_cpu()) return at::toOpMathType(input.scalar_type());
  for (std::string_view name : {"weight", "bias", "running_mean"})
    if (at::Tensor values = tensor_in(op, stack, {name}); values.defined())
      return values.scalar_type();
  return input.scalar_type();
}

// [c] to [1, c, 1 ...].
at::Tensor by_channel(const at::Tensor& values, const at::Tensor& input) {
  std::vector<int64_t> sizes(size_t(input.dim()), 1);
  sizes[channel] = values.size(0);
  return values.view(sizes);
}

struct Statistics {
  at::Tensor mean, variance;  // [c], in the type that the kernels save
};

// Computes statistics of `n` values per channel, over all ranks. Adds sums and sums of squares in
// double, so that their difference keeps single precision.
Statistics statistics(const at::Tensor& input, int64_t n, const MeshDims& over, const Mesh& mesh) {
  at::ScalarType type = at::toOpMathType(input.scalar_type());
  int64_t n_channels = input.size(channel);
  int64_t own = n_channels > 0 ? input.numel() / n_channels : 0;
  at::Tensor sums = at::zeros({2, n_channels}, input.options().dtype(at::kDouble));
  if (own > 0) {
    auto [variance, mean] = at::var_mean(input.to(type), all_but_channel(input), /*correction=*/0);
    mean = mean.to(at::kDouble);
    sums = at::stack({mean, mean.square().add_(variance)}).mul_(double(own));
  }
  sums = all_reduced(sums, over, mesh, ReduceOp::sum).div_(double(n));
  at::Tensor variance = (sums[1] - sums[0].square()).clamp_min_(0);
  return {sums[0].to(type), variance.to(type)};
}

void update(at::Tensor running, const at::Tensor& now, double momentum) {
  if (running.defined()) running.mul_(1 - momentum).add_(now, momentum);
}

// Normalizes a split batch in training.
auto normalize_over(int64_t n, const MeshDims& over) {
  return [n, over](const Operator& op, torch::jit::Stack& stack, const Mesh& mesh) {
    at::Tensor input = tensor_in(op, stack, {"input"});
    double momentum = number_in(op, stack, {"momentum", "exponential_average_factor"});
    double eps = number_in(op, stack, {"eps", "epsilon"});
    Statistics now = statistics(input, n, over, mesh);
    const at::Tensor &mean = now.mean, &variance = now.variance;
    update(tensor_in(op, stack, {"running_mean"}), mean, momentum);
    update(tensor_in(op, stack, {"running_var"}),
           variance * (double(n) / double(std::max<int64_t>(n - 1, 1))), momentum);
    at::Tensor scale = (variance + eps).rsqrt_();
    // The kernels need one type for all arguments by channel.
    auto like_statistics = [&](std::string_view name) {
      at::Tensor values = tensor_in(op, stack, {name});
      return values.defined() ? values.to(mean.scalar_type()) : values;
    };
    at::Tensor output = at::empty_like(input);
    if (input.numel() > 0)
      output = std::get<0>(at::native_batch_norm(input, like_statistics("weight"),
                                                 like_statistics("bias"), mean, variance, false, 0,
                                                 eps));
    at::ScalarType kept = type_by_channel(op, stack, input);
    stack = {output, mean.to(kept), scale.to(kept)};
    // cuDNN's reserve for its own backward.
    if (op.returned.size() > 3) stack.push_back(at::empty({0}, input.options().dtype(at::kByte)));
  };
}

auto differentiate_over(int64_t n, const MeshDims& over) {
  return [n, over](const Operator& op, torch::jit::Stack& stack, const Mesh& mesh) {
    at::Tensor input = tensor_in(op, stack, {"input"});
    at::ScalarType type = at::toOpMathType(input.scalar_type());
    at::Tensor grad = tensor_in(op, stack, {"grad_out", "grad_output"}).to(type);
    at::Tensor weight = tensor_in(op, stack, {"weight"});
    at::Tensor scale = tensor_in(op, stack, {"save_invstd", "save_var"}).to(type);
    at::Tensor mean = tensor_in(op, stack, {"save_mean"}).to(type);
    at::Tensor normal = (input.to(type) - by_channel(mean, input)) * by_channel(scale, input);
    std::vector<int64_t> dims = all_but_channel(input);
    at::Tensor sums = all_reduced(at::stack({grad.sum(dims), (grad * normal).sum(dims)}), over,
                                  mesh, ReduceOp::sum);
    at::Tensor grad_input = (grad - by_channel(sums[0] / double(n), input) -
                             normal * by_channel(sums[1] / double(n), input)) *
                            by_channel(weight.defined() ? scale * weight : scale, input);
    at::ScalarType by_channel_type = type_by_channel(op, stack, input);
    stack = {grad_input.to(input.scalar_type()), sums[1].to(by_channel_type),
             sums[0].to(by_channel_type)};
  };
}

// The kernels cannot run on an empty part, because they divide by the number of values. Some ignore
// the strides that arguments by channel have in a part in blocks, and misread the strides of some
// inputs.
void run_unless_empty(const Operator& op, torch::jit::Stack& stack, const Mesh&) {
  at::Tensor input = tensor_in(op, stack, {"input"});
  for (size_t i = 0; i < stack.size(); ++i)
    if (stack[i].isTensor() && stack[i].toTensor().dim() == 1 && !op.is_written[i])
      stack[i] = stack[i].toTensor().contiguous();
  for (c10::IValue& value : stack)
    if (value.isTensor() && value.toTensor().is_same(input)) value = with_clear_format(input);
  if (input.numel() > 0) return op.handle.callBoxed(&stack);
  bool is_backward = tensor_in(op, stack, {"grad_out", "grad_output"}).defined();
  at::Tensor of_channels = at::zeros({is_backward ? input.size(channel) : 0},
                                     input.options().dtype(type_by_channel(op, stack, input)));
  stack = {at::empty_like(input), of_channels, of_channels.clone()};
  if (op.returned.size() > 3) stack.push_back(at::empty({0}, input.options().dtype(at::kByte)));
}

std::optional<CallPlan> batch_norm(const Call& call) {
  const TensorArgument& input = call.tensors[size_t(call.tensor_of("input"))];
  Letters x = letters(input.tensor.dim()), c = {channel};
  bool is_backward = call.tensor_of("grad_out") >= 0 || call.tensor_of("grad_output") >= 0;
  // The state saved for backward is opaque.
  std::vector<Letters> outputs(call.op.returned.size(), Letters());
  outputs[0] = x;
  outputs[1] = outputs[2] = c;
  auto factors = named_factors(call,
                               {{"grad_out", x},
                                {"grad_output", x},
                                {"input", x},
                                {"weight", c},
                                {"bias", c},
                                {"running_mean", c},
                                {"running_var", c},
                                {"save_mean", c},
                                {"save_invstd", c},
                                {"save_var", c},
                                {"reserve", {-1}},
                                {"reserveSpace", {-1}}},
                               outputs);
  if (!factors) return std::nullopt;
  bool is_training = call.boolean("training", call.boolean("train", call.boolean("update", true)));
  if (call.op.name == "aten::_native_batch_norm_legit_no_training") is_training = false;
  if (!all_ranks_hold(call, *factors, channel, input.sizes()[channel]))
    factors->whole |= 1 << channel;
  CallPlan plan = plan_by_factors(call, *factors);
  plan.run = run_unless_empty;
  // In evaluation the saved statistics are empty.
  plan.outputs[0].sizes = Sizes(input.sizes().begin(), input.sizes().end());
  for (size_t i : {1, 2}) plan.outputs[i].sizes = {input.sizes()[channel]};
  MeshDims over;
  for (Mesh::Dim dim : Mesh::dims)
    if (plan.outputs[1].placements[dim].is_partial()) over.push_back(dim);
  if (outputs.size() > 3) make_whole(plan.outputs[3]);
  if (!is_training) {
    if (!is_backward)
      for (size_t i : {1, 2}) make_whole(plan.outputs[i]);  // empty
    return plan;
  }
  // Some kernels save a state that fits backward only on the same parts.
  bool keeps =
      outputs.size() > 3 || call.tensor_of("reserve") >= 0 || call.tensor_of("reserveSpace") >= 0;
  if (over.empty() && !keeps) return plan;
  int64_t n = input.tensor.numel() / std::max<int64_t>(input.sizes()[channel], 1);
  for (size_t i : {1, 2})
    for (Mesh::Dim dim : over) plan.outputs[i].placements[dim] = {};
  if (is_backward)
    plan.run = differentiate_over(n, over);
  else
    plan.run = normalize_over(n, over);
  return plan;
}

}  // namespace

const RuleTable& batch_norm_rules() {
  static const RuleTable table = [] {
    RuleTable table = {
        {"aten::native_batch_norm", batch_norm},
        {"aten::_native_batch_norm_legit", batch_norm},
        {"aten::_native_batch_norm_legit_no_training", batch_norm},
        {"aten::_batch_norm_with_update", batch_norm},
        {"aten::cudnn_batch_norm", batch_norm},
        {"aten::native_batch_norm_backward", batch_norm},
        {"aten::batch_norm_backward", batch_norm},
        {"aten::cudnn_batch_norm_backward", batch_norm},
    };
    table["aten::miopen_batch_norm"] = {};  // without a rule
    for (const char* name :
         {"aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::miopen_batch_norm"})
      table[name].written = {"running_mean", "running_var"};
    return table;
  }();
  return table;
}

}  // namespace redco::sharding
