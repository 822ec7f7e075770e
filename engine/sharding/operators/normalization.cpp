// Rules for normalization within each example: layer, RMS, group and weight norm.

#include "rules.h"

#include <ATen/OpMathType.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include <limits>

namespace redco::sharding {

namespace {

// Factors for the first `n` dimensions; the others must not be split.
Letters leading(int64_t n_dims, int64_t n) {
  Letters result(size_t(n_dims), int8_t(-1));
  for (int64_t dim = 0; dim < n; ++dim) result[size_t(dim)] = int8_t(dim);
  return result;
}

// The tensors of a layer or RMS norm. An RMS norm has no mean and no bias.
struct NormArguments {
  at::Tensor grad_out, input, mean, rstd, weight, bias;
  double eps = 0;
  bool is_layer_norm;
};

at::Tensor tensor_of(const Operator& op, const torch::jit::Stack& stack, const char* name) {
  const std::optional<int> place = op.schema().argumentIndexWithName(name);
  return place && stack[size_t(*place)].isTensor() ? stack[size_t(*place)].toTensor()
                                                   : at::Tensor();
}

NormArguments norm_arguments(const Operator& op, const torch::jit::Stack& stack) {
  auto tensor = [&](const char* name) { return tensor_of(op, stack, name); };
  NormArguments found{tensor("grad_out"),
                      tensor("input"),
                      tensor("mean"),
                      tensor("rstd"),
                      tensor("weight"),
                      tensor("bias"),
                      0,
                      op.name.starts_with("aten::native_layer_norm")};
  if (const std::optional<int> place = op.schema().argumentIndexWithName("eps")) {
    const c10::IValue& eps = stack[size_t(*place)];
    const bool is_double = found.input.scalar_type() == at::kDouble;
    found.eps = eps.isDouble() ? eps.toDouble()
                : is_double    ? std::numeric_limits<double>::epsilon()
                               : std::numeric_limits<float>::epsilon();
  }
  return found;
}

// LibTorch's layer norm on CPUs keeps the statistics of 16-bit floats in 16 bits.
at::ScalarType statistics_type(const NormArguments& a) {
  const at::ScalarType type = a.input.scalar_type();
  const bool is_mixed = a.weight.defined() && a.weight.scalar_type() != type;
  return a.is_layer_norm && a.input.is_cpu() && !is_mixed ? type : at::toOpMathType(type);
}

// Normalizes rows of n elements whose dimension the mesh dimensions `over` split. Each rank keeps
// its part of a row, and sends only sums over rows.
void normalize_parts(const NormArguments& a, int64_t n, const MeshDims& over, const Mesh& mesh,
                     torch::jit::Stack& stack) {
  auto mean_over_row = [&](const at::Tensor& x) {
    return all_reduced(x.sum(-1, true), over, mesh, ReduceOp::sum).div_(n);
  };
  at::Tensor x = widened(a.input), mean;
  if (a.is_layer_norm) x = x - (mean = mean_over_row(x));
  const at::Tensor rstd = mean_over_row(x.square()).add_(a.eps).rsqrt_();
  at::Tensor y = x * rstd;
  if (a.weight.defined()) y.mul_(a.weight);
  if (a.bias.defined()) y.add_(a.bias);
  stack = {y.to(a.input.scalar_type())};
  if (a.is_layer_norm) stack.emplace_back(mean.to(statistics_type(a)));
  stack.emplace_back(rstd.to(statistics_type(a)));
}

void differentiate_parts(const NormArguments& a, int64_t n, const MeshDims& over, const Mesh& mesh,
                         torch::jit::Stack& stack) {
  const auto wanted = stack.back().toBoolList();  // gradients of input, weight and bias
  const at::Tensor rstd = widened(a.rstd), grad = widened(a.grad_out);
  at::Tensor x = widened(a.input);
  if (a.is_layer_norm) x = x - widened(a.mean);
  x = x * rstd;
  at::Tensor d_x, d_weight, d_bias;
  if (wanted[0]) {
    d_x = a.weight.defined() ? grad * a.weight : grad.clone();
    at::Tensor sums = (d_x * x).sum(-1, true);
    if (a.is_layer_norm) sums = at::cat({sums, d_x.sum(-1, true)}, -1);
    sums = all_reduced(sums, over, mesh, ReduceOp::sum).div_(n);
    d_x.sub_(x * sums.narrow(-1, 0, 1));
    if (a.is_layer_norm) d_x.sub_(sums.narrow(-1, 1, 1));
    d_x = d_x.mul_(rstd).to(a.input.scalar_type());
  }
  auto over_rows = [&](const at::Tensor& terms) {
    return terms.unsqueeze(0).flatten(0, -2).sum(0).to(a.weight.scalar_type());
  };
  if (wanted[1] && a.weight.defined()) d_weight = over_rows(grad * x);
  stack = {d_x, d_weight};
  if (!a.is_layer_norm) return;
  if (wanted[2]) d_bias = over_rows(grad);
  stack.emplace_back(d_bias);
}

// x: [leading ..., normalized ...]; statistics: [leading ..., 1 ...]; weights: [normalized ...].
// The gradients of the weights are sums over the leading dimensions. If only one dimension is
// normalized, it may stay split if x is split along it.
struct LayerLetters {
  explicit LayerLetters(const Call& call) {
    const TensorArgument& input = call.tensors[size_t(call.tensor_of("input"))];
    const int64_t n_dims = input.tensor.dim();
    auto n = int64_t(call.find("normalized_shape")->toIntVector().size());
    x = statistics = leading(n_dims, n_dims - n);
    weight = leading(n, 0);
    if (n != 1 || splitting(input.placements, n_dims - 1).empty()) return;
    last = n_dims - 1;
    x.back() = weight.back() = int8_t(last);
  }
  Letters x, statistics, weight;
  int64_t last = -1;  // the dimension that may be split
};

using OverSplitRows = void (*)(const NormArguments&, int64_t n, const MeshDims& over,
                               const Mesh& mesh, torch::jit::Stack& stack);

void run_over_parts(const Call& call, const LayerLetters& l, OverSplitRows over_parts,
                    CallPlan& plan) {
  const auto input = size_t(call.tensor_of("input"));
  const MeshDims over = l.last < 0 ? MeshDims() : splitting(plan.inputs[input], l.last);
  if (over.empty()) return;
  for (OutputPlan& output : plan.outputs)  // the run below reduces the statistics
    for (Mesh::Dim dim : over)
      if (output.placements[dim].is_partial()) output.placements[dim] = {};
  plan.run = [=, n = call.tensors[input].sizes().back()](
                 const Operator& op, torch::jit::Stack& stack, const Mesh& mesh) {
    over_parts(norm_arguments(op, stack), n, over, mesh, stack);
  };
}

std::optional<CallPlan> layer_norm(const Call& call) {
  LayerLetters l(call);
  auto factors = named_factors(call, {{"input", l.x}, {"weight", l.weight}, {"bias", l.weight}},
                               {l.x, l.statistics, l.statistics});
  if (!factors) return std::nullopt;
  CallPlan plan = plan_by_factors(call, *factors);
  run_over_parts(call, l, normalize_parts, plan);
  return plan;
}

std::optional<CallPlan> layer_norm_backward(const Call& call) {
  LayerLetters l(call);
  auto factors = named_factors(call,
                               {{"grad_out", l.x},
                                {"input", l.x},
                                {"mean", l.statistics},
                                {"rstd", l.statistics},
                                {"weight", l.weight},
                                {"bias", l.weight}},
                               {l.x, l.weight, l.weight});
  if (!factors) return std::nullopt;
  CallPlan plan = plan_by_factors(call, *factors);
  plan.run = run_on_contiguous;  // the kernel ignores the strides of the statistics
  run_over_parts(call, l, differentiate_parts, plan);
  return plan;
}

// A group norm of tensors [n, c, ...] whose last dimensions are joined, [n, group, c / group, ...].
struct Groups {
  Groups(const Operator& op, const torch::jit::Stack& stack)
      : a(norm_arguments(op, stack)),
        n_groups(stack[size_t(*op.schema().argumentIndexWithName("group"))].toInt()) {}

  at::Tensor of(const at::Tensor& tensor) const {
    return widened(tensor).reshape({tensor.size(0), n_groups, tensor.size(1) / n_groups, -1});
  }
  at::Tensor of_channels(const at::Tensor& weight) const {
    return widened(weight).view({1, n_groups, -1, 1});
  }
  at::Tensor of_statistics(const at::Tensor& statistics) const {
    return widened(statistics).view({-1, n_groups, 1, 1});
  }

  NormArguments a;
  int64_t n_groups;
};

// Normalizes groups of n elements whose positions `over` splits. Ranks send sums over groups.
void normalize_groups(const Groups& g, int64_t n, const MeshDims& over, const Mesh& mesh,
                      torch::jit::Stack& stack) {
  const auto mean_of = [&](const at::Tensor& x) {
    return all_reduced(x.sum(at::IntArrayRef{2, 3}, true), over, mesh, ReduceOp::sum).div_(n);
  };
  at::Tensor x = g.of(g.a.input);
  const at::Tensor mean = mean_of(x);
  x = x - mean;
  const at::Tensor rstd = mean_of(x.square()).add_(g.a.eps).rsqrt_();
  x.mul_(rstd);
  if (g.a.weight.defined()) x.mul_(g.of_channels(g.a.weight));
  if (g.a.bias.defined()) x.add_(g.of_channels(g.a.bias));
  const bool is_mixed = g.a.weight.defined() && g.a.weight.scalar_type() != g.a.input.scalar_type();
  const at::ScalarType type = is_mixed ? x.scalar_type() : g.a.input.scalar_type();
  stack = {x.view(g.a.input.sizes()).to(g.a.input.scalar_type()), mean.flatten(1).to(type),
           rstd.flatten(1).to(type)};
}

void differentiate_groups(const Groups& g, int64_t n, const MeshDims& over, const Mesh& mesh,
                          torch::jit::Stack& stack) {
  const auto wanted = stack.back().toBoolList();  // gradients of input, weight and bias
  const at::Tensor rstd = g.of_statistics(g.a.rstd), grad = g.of(g.a.grad_out);
  const at::Tensor x = (g.of(g.a.input) - g.of_statistics(g.a.mean)).mul_(rstd);
  at::Tensor d_x, d_weight, d_bias;
  if (wanted[0]) {
    d_x = g.a.weight.defined() ? grad * g.of_channels(g.a.weight) : grad.clone();
    const at::Tensor sums = all_reduced(at::stack({(d_x * x).sum(at::IntArrayRef{2, 3}, true),
                                                   d_x.sum(at::IntArrayRef{2, 3}, true)}),
                                        over, mesh, ReduceOp::sum)
                                .div_(n);
    d_x = d_x.sub_(x * sums[0]).sub_(sums[1]).mul_(rstd);
    d_x = d_x.view(g.a.input.sizes()).to(g.a.input.scalar_type());
  }
  const at::ScalarType type = (g.a.weight.defined() ? g.a.weight : g.a.input).scalar_type();
  if (wanted[1]) d_weight = (grad * x).sum(at::IntArrayRef{0, 3}).flatten().to(type);
  if (wanted[2]) d_bias = grad.sum(at::IntArrayRef{0, 3}).flatten().to(type);
  stack = {d_x, d_weight, d_bias};
}

// input: [n, c, ...]; statistics: [n, group]. Channels may be split between groups only, and one
// dimension of positions by context shards.
std::optional<CallPlan> group_norm_plan(const Call& call, bool is_backward) {
  const TensorArgument& input = call.tensors[size_t(call.tensor_of("input"))];
  Letters x = leading(input.tensor.dim(), 2), weight = {channel}, statistics = {batch, channel};
  int64_t position = -1;  // the dimension that may be split
  for (Mesh::Dim dim : Mesh::dims_of(Mesh::context))
    if (const Placement& placement = input.placements[dim];
        placement.is_sharded() && !placement.is_on_rank() && placement.dim > channel)
      position = placement.dim;
  if (position > 0) x[size_t(position)] = int8_t(position);
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
  for (size_t i : {1, 2})
    plan.outputs[i].sizes = is_backward ? Sizes{all[channel]} : Sizes{all[batch], n_groups};
  const MeshDims over =
      position < 0 ? MeshDims() : splitting(plan.inputs[size_t(call.tensor_of("input"))], position);
  if (!over.empty()) {
    int64_t n = all[channel] / n_groups;
    for (size_t dim = 2; dim < all.size(); ++dim) n *= all[dim];
    for (size_t i : {1, 2})  // the run below reduces the statistics
      for (Mesh::Dim dim : over)
        if (!is_backward) plan.outputs[i].placements[dim] = {};
    plan.run = [=](const Operator& op, torch::jit::Stack& stack, const Mesh& mesh) {
      (is_backward ? differentiate_groups : normalize_groups)(Groups(op, stack), n, over, mesh,
                                                              stack);
    };
    return plan;
  }
  // The kernels need dense tensors in one memory order, which redistributed tensors may not have.
  // Only the CPU's kernel takes channels-last tensors.
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
  static const OperatorFacts norm = [] {
    OperatorFacts facts = with_cost(layer_norm, {.starts = 2});
    facts.normalizes = true;
    return facts;
  }();
  static const RuleTable table = {
      {"aten::native_layer_norm", norm},
      {"aten::native_layer_norm_backward",
       with_cost(layer_norm_backward, {.passes = 3, .starts = 2.3})},
      {"aten::_fused_rms_norm", norm},
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
