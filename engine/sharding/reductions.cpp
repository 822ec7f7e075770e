// Reductions over dimensions.

#include "rules.h"

#include <ATen/ops/amax.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/var.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace redco {

namespace {

struct Reduction {
  std::vector<int64_t> dims;  // that go
  bool keeps = false;         // as dimensions of one element
};

Reduction reduction_of(const Call& call) {
  int64_t n_dims = call.tensors[0].tensor.dim();
  std::vector<int64_t> all(size_t(n_dims), 0);
  std::iota(all.begin(), all.end(), int64_t{0});
  // An empty list means all, as a missing one does.
  auto dims = call.dims("dim", n_dims);
  return {dims && !dims->empty() ? *dims : all, call.boolean("keepdim", false)};
}

Factors factors_of(const Call& call, const Reduction& reduction, ReduceOp op) {
  int64_t n_dims = call.tensors[0].tensor.dim();
  Factors factors;
  factors.reduction = op;
  factors.inputs.push_back(letters(n_dims));
  Letters output;
  for (int64_t dim = 0; dim < n_dims; ++dim) {
    bool goes =
        std::find(reduction.dims.begin(), reduction.dims.end(), dim) != reduction.dims.end();
    if (!goes)
      output.push_back(int8_t(dim));
    else if (reduction.keeps)
      output.push_back(-1);
  }
  factors.outputs.push_back(output);
  for (size_t i = 1; i < call.tensors.size(); ++i) {  // out: it lies as the result does
    factors.inputs.push_back(output);
    factors.added |= uint64_t{1} << i;
  }
  return factors;
}

int64_t count(const Call& call, const Reduction& reduction) {
  int64_t n = 1;
  for (int64_t dim : reduction.dims) n *= call.tensors[0].sizes()[size_t(dim)];
  return n;
}

bool fits(const Call& call, const Factors& factors) {
  for (size_t i = 0; i < call.tensors.size(); ++i)
    if (call.tensors[i].tensor.dim() != int64_t(factors.inputs[i].size())) return false;
  return true;
}

// Booleans add up to "any" and multiply to "all".
Rule reduced(ReduceOp op) {
  return [op](const Call& call) -> std::optional<Plan> {
    Factors factors = factors_of(call, reduction_of(call), op);
    if (!fits(call, factors)) return std::nullopt;
    if (op == ReduceOp::sum) factors.linear = {1 | factors.added};
    return plan_by_factors(call, factors);
  };
}

bool is_reduced(const Call& call, const Plan& plan) {
  for (size_t dim = 0; dim < Mesh::n_dims; ++dim)
    if (is_reduced_over(call, plan, plan.outputs[0], Mesh::Dim(dim))) return true;
  return false;
}

std::optional<Plan> mean(const Call& call) {
  Reduction reduction = reduction_of(call);
  Factors factors = factors_of(call, reduction, ReduceOp::sum);
  if (!fits(call, factors) || call.tensors.size() > 1) return std::nullopt;
  factors.linear = {1};
  Plan plan = plan_by_factors(call, factors);
  // The parts may differ in size: their sums add up, their means do not.
  if (is_reduced(call, plan))
    plan.run = [reduction, n = double(count(call, reduction))](
                   const Operator& op, torch::jit::Stack& stack, const Mesh&) {
      std::optional<at::ScalarType> dtype;
      for (size_t i = 0; i < stack.size(); ++i)
        if (op.schema().arguments()[i].name() == "dtype")
          dtype = stack[i].toOptional<at::ScalarType>();
      at::Tensor sum = at::sum(stack[0].toTensor(), reduction.dims, reduction.keeps, dtype);
      stack = {sum.div_(n)};
    };
  return plan;
}

// Those whose parts combine otherwise than by a sum or a maximum of the results. `run` is given the
// group that splits what is reduced.
using Combine = std::function<at::Tensor(const Operator&, torch::jit::Stack&, Group&)>;

std::optional<Plan> combined(const Call& call, const Reduction& reduction, Combine combine) {
  Factors factors = factors_of(call, reduction, ReduceOp::sum);
  if (!fits(call, factors) || call.tensors.size() > 1) return std::nullopt;
  Plan plan = plan_by_factors(call, factors);
  std::vector<Mesh::Dim> over;
  for (size_t dim = 0; dim < Mesh::n_dims; ++dim)
    if (plan.outputs[0].placements[dim].is_partial()) over.push_back(Mesh::Dim(dim));
  if (over.empty()) return plan;
  if (over.size() > 1) return std::nullopt;
  plan.outputs[0].placements[over[0]] = {};
  plan.run = [combine, over](const Operator& op, torch::jit::Stack& stack, const Mesh& mesh) {
    stack = {combine(op, stack, mesh.group(over[0]))};
  };
  return plan;
}

std::optional<Plan> vector_norm(const Call& call) {
  const c10::IValue* order = call.find("ord");
  if (!order) order = call.find("p");
  double p = order && order->isScalar() ? order->toScalar().toDouble() : 2.0;
  return combined(call, reduction_of(call),
                  [p](const Operator& op, torch::jit::Stack& stack, Group& group) {
                    op.handle.callBoxed(&stack);
                    at::Tensor norm = stack.back().toTensor();
                    if (std::isinf(p))
                      return group.all_reduce(norm, p > 0 ? ReduceOp::max : ReduceOp::min);
                    if (p == 0) return group.all_reduce(norm, ReduceOp::sum);
                    return group.all_reduce(norm.pow(p), ReduceOp::sum).pow_(1 / p);
                  });
}

std::optional<Plan> logsumexp(const Call& call) {
  return combined(call, reduction_of(call),
                  [](const Operator& op, torch::jit::Stack& stack, Group& group) {
                    op.handle.callBoxed(&stack);
                    at::Tensor own = stack.back().toTensor();
                    at::Tensor most = group.all_reduce(own.clone(), ReduceOp::max);
                    most.masked_fill_(most.isinf(), 0);
                    return group.all_reduce((own - most).exp_(), ReduceOp::sum).log_().add_(most);
                  });
}

}  // namespace

bool is_reduced_over(const Call& call, const Plan& plan, const OutputPlan& output, Mesh::Dim dim) {
  if (!output.placements[dim].is_partial()) return false;
  return std::none_of(plan.inputs.begin(), plan.inputs.end(),
                      [&](const Placements& placements) { return placements[dim].is_partial(); });
}

const RuleTable& reduction_rules() {
  static const RuleTable table = {
      {"aten::sum", reduced(ReduceOp::sum)},           {"aten::nansum", reduced(ReduceOp::sum)},
      {"aten::amax", reduced(ReduceOp::max)},          {"aten::amin", reduced(ReduceOp::min)},
      {"aten::any", reduced(ReduceOp::max)},           {"aten::all", reduced(ReduceOp::min)},
      {"aten::count_nonzero", reduced(ReduceOp::sum)}, {"aten::mean", mean},
      {"aten::linalg_vector_norm", vector_norm},       {"aten::logsumexp", logsumexp},
  };
  return table;
}

}  // namespace redco
