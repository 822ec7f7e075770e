// Reductions over dimensions.

#include "rules.h"

#include <ATen/ops/mean.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <numeric>

namespace redco {

Reduction reduction_of(const Call& call) {
  int64_t n_dims = call.tensors[0].tensor.dim();
  std::vector<int64_t> all(size_t(n_dims), 0);
  std::iota(all.begin(), all.end(), int64_t{0});
  // An empty list means all, as a missing one does.
  auto dims = call.dims("dim", n_dims);
  return {dims && !dims->empty() ? *dims : all, call.boolean("keepdim", false)};
}

std::optional<Factors> reduction_factors(const Call& call, const Reduction& reduction,
                                         ReduceOp op) {
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
    if (call.tensors[i].tensor.dim() != int64_t(output.size())) return std::nullopt;
    factors.inputs.push_back(output);
    factors.added |= uint64_t{1} << i;
  }
  return factors;
}

MeshDims reduced_over(Plan& plan) {
  MeshDims over;
  for (size_t i = 0; i < Mesh::n_dims; ++i)
    if (plan.outputs[0].placements[i].is_partial()) over.push_back(Mesh::Dim(i));
  for (OutputPlan& output : plan.outputs)
    for (Mesh::Dim dim : over) output.placements[dim] = {};
  return over;
}

namespace {

int64_t count(const Call& call, const Reduction& reduction) {
  int64_t n = 1;
  for (int64_t dim : reduction.dims) n *= call.tensors[0].sizes()[size_t(dim)];
  return n;
}

// Booleans add up to "any" and multiply to "all".
Rule reduced(ReduceOp op) {
  return [op](const Call& call) -> std::optional<Plan> {
    std::optional<Factors> factors = reduction_factors(call, reduction_of(call), op);
    if (!factors) return std::nullopt;
    if (op == ReduceOp::sum) factors->linear = {1 | factors->added};
    return plan_by_factors(call, *factors);
  };
}

bool is_reduced(const Call& call, const Plan& plan) {
  for (size_t dim = 0; dim < Mesh::n_dims; ++dim)
    if (is_reduced_over(call, plan, plan.outputs[0], Mesh::Dim(dim))) return true;
  return false;
}

std::optional<Plan> mean(const Call& call) {
  Reduction reduction = reduction_of(call);
  std::optional<Factors> factors = reduction_factors(call, reduction, ReduceOp::sum);
  if (!factors || call.tensors.size() > 1) return std::nullopt;
  factors->linear = {1};
  Plan plan = plan_by_factors(call, *factors);
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

}  // namespace

bool is_reduced_over(const Call& call, const Plan& plan, const OutputPlan& output, Mesh::Dim dim) {
  if (!output.placements[dim].is_partial()) return false;
  return std::none_of(plan.inputs.begin(), plan.inputs.end(),
                      [&](const Placements& placements) { return placements[dim].is_partial(); });
}

const RuleTable& reduction_rules() {
  static const RuleTable table = {
      {"aten::sum", reduced(ReduceOp::sum)},           {"aten::nansum", reduced(ReduceOp::sum)},
      {"aten::any", reduced(ReduceOp::max)},           {"aten::all", reduced(ReduceOp::min)},
      {"aten::count_nonzero", reduced(ReduceOp::sum)}, {"aten::mean", mean},
  };
  return table;
}

}  // namespace redco
