// Rules for reductions whose partial results cannot be combined by sum or maximum: products, norms,
// variances. If a dimension is split, gathers or converts the ranks' results first.

#include "rules.h"

#include <ATen/OpMathType.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/var_mean.h>
#include <c10/core/ScalarType.h>

#include <cmath>
#include <limits>

namespace redco::sharding {

namespace {

// Combines a rank's result with those of a group that splits a reduced dimension.
using Combine = std::function<at::Tensor(at::Tensor own, Group& group)>;

// Computes and reduces 16-bit floats in float32, and rounds once. `of_nothing` is the result for an
// empty part, if the operator rejects it.
std::optional<CallPlan> combined(const Call& call, Combine combine,
                                 std::optional<double> of_nothing = {}) {
  Reduction reduction = reduction_of(call);
  std::optional<Factors> factors = reduction_factors(call, reduction, ReduceOp::sum);
  if (!factors || call.tensors.size() > 1) return std::nullopt;
  CallPlan plan = plan_by_factors(call, *factors);
  MeshDims over = reduced_over(plan);
  if (over.empty()) return plan;
  plan.run = [=, dtype = call.index_of("dtype")](const Operator& op, torch::jit::Stack& stack,
                                                 const Mesh& mesh) {
    at::Tensor x = stack[0].toTensor();
    at::ScalarType type = x.scalar_type();
    if (dtype >= 0 && !stack[size_t(dtype)].isNone()) type = stack[size_t(dtype)].toScalarType();
    if (is_narrow(type)) {
      stack[0] = widened(x.to(type));
      if (dtype >= 0) stack[size_t(dtype)] = c10::IValue();
    }
    if (of_nothing && x.numel() == 0)
      stack = {at::sum(x.to(c10::toRealValueType(at::toOpMathType(type))), reduction.dims,
                       reduction.keeps)
                   .fill_(*of_nothing)};
    else
      op.handle.callBoxed(&stack);
    at::Tensor result = stack[0].toTensor();
    for (Mesh::Dim dim : over) result = combine(result.contiguous(), mesh.group(dim));
    stack = {is_narrow(type) ? result.to(c10::toRealValueType(type)) : result};
  };
  return plan;
}

std::optional<CallPlan> prod(const Call& call) {
  return combined(call, [](at::Tensor own, Group& group) {
    return group.all_gather(own).prod(0, false, own.scalar_type());
  });
}

std::optional<CallPlan> logsumexp(const Call& call) {
  return combined(call,
                  [](at::Tensor own, Group& group) { return group.all_gather(own).logsumexp(0); });
}

std::optional<CallPlan> vector_norm(const Call& call) {
  const c10::IValue* order = call.find("ord");
  if (!order) order = call.find("p");
  double p = order && order->isScalar() ? order->toScalar().toDouble() : 2.0;
  std::optional<double> of_nothing;
  if (std::isinf(p)) {
    // The operator itself throws if there is no element.
    if (call.tensors[0].tensor.numel() == 0) return std::nullopt;
    of_nothing = p > 0 ? 0 : std::numeric_limits<double>::infinity();
  }
  auto combine = [p](at::Tensor own, Group& group) {
    if (std::isinf(p)) return group.all_reduce(own, p > 0 ? ReduceOp::max : ReduceOp::min);
    if (p == 0) return group.all_reduce(own, ReduceOp::sum);
    // Computes powers in double: they may overflow float32 even if the norm does not.
    at::Tensor powers = group.all_reduce(own.to(at::kDouble).pow(p), ReduceOp::sum);
    return powers.pow_(1 / p).to(own.scalar_type());
  };
  return combined(call, combine, of_nothing);
}

// Count, mean and sum of squared deviations. Combined by Chan's formula, in double as on one
// process.
struct Moments {
  at::Tensor count, mean, squares;
};

Moments moments(const at::Tensor& x, at::IntArrayRef dims) {
  int64_t n = 1;
  for (int64_t dim : dims) n *= x.size(dim);
  if (n == 0) {
    at::Tensor none = at::sum(x.to(at::kDouble), dims, true);
    return {none, none, none};
  }
  auto [variance, mean] = at::var_mean(widened(x), dims, /*correction=*/0, /*keepdim=*/true);
  mean = mean.to(at::kDouble);
  return {at::full_like(mean, double(n)), mean, variance.to(at::kDouble).mul_(double(n))};
}

Moments joined(const Moments& own, Group& group) {
  at::Tensor all = group.all_gather(at::stack({own.count, own.mean, own.squares}));
  at::Tensor counts = all.select(1, 0), means = all.select(1, 1);
  at::Tensor count = counts.sum(0);
  // Leaves out empty parts, because they have no mean.
  at::Tensor none = counts.eq(0);
  at::Tensor mean = (counts * means).masked_fill_(none, 0).sum(0).div_(count);
  at::Tensor squares = (counts * (means - mean).square_()).masked_fill_(none, 0).sum(0);
  return {count, mean, squares.add_(all.select(1, 2).sum(0))};
}

// The variance or its root, and optionally the mean.
Rule variance(bool is_root, bool with_mean) {
  return [=](const Call& call) -> std::optional<CallPlan> {
    Reduction reduction = reduction_of(call);
    std::optional<Factors> factors = reduction_factors(call, reduction, ReduceOp::sum);
    auto place = call.index_of("correction");
    at::ScalarType type = call.tensors[0].tensor.scalar_type();
    if (!factors || call.tensors.size() > 1 || place < 0 || !at::isFloatingType(type))
      return std::nullopt;
    if (with_mean) factors->outputs.push_back(factors->outputs[0]);
    CallPlan plan = plan_by_factors(call, *factors);
    MeshDims over = reduced_over(plan);
    if (over.empty()) return plan;
    plan.run = [=](const Operator&, torch::jit::Stack& stack, const Mesh& mesh) {
      double correction = 1;
      const c10::IValue& given = stack[size_t(place)];
      if (!given.isNone()) correction = given.toScalar().toDouble();
      Moments all = moments(stack[0].toTensor(), reduction.dims);
      for (Mesh::Dim dim : over) all = joined(all, mesh.group(dim));
      at::Tensor result = all.squares / (all.count - correction).clamp_min_(0);
      if (is_root) result.sqrt_();
      auto shaped = [&](const at::Tensor& kept) {
        return (reduction.keeps ? kept : kept.squeeze(reduction.dims)).to(type);
      };
      stack = {shaped(result)};
      if (with_mean) stack.emplace_back(shaped(all.mean));
    };
    return plan;
  };
}

}  // namespace

const RuleTable& statistics_rules() {
  static const RuleTable table = [] {
    RuleTable table = {
        {"aten::prod", prod},
        {"aten::logsumexp", logsumexp},
        {"aten::linalg_vector_norm", vector_norm},
        {"aten::norm", vector_norm},
        {"aten::var", variance(false, false)},
        {"aten::std", variance(true, false)},
        {"aten::var_mean", variance(false, true)},
        {"aten::std_mean", variance(true, true)},
    };
    for (const char* name : {"aten::linalg_vector_norm", "aten::norm"})
      table[name].keys_floats = true;
    return table;
  }();
  return table;
}

}  // namespace redco::sharding
