// Rules for sums, means and logical reductions over dimensions.

#include "gpu_bytes.h"
#include "rules.h"

#include <ATen/OpMathType.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sum.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <numeric>

namespace redco::sharding {

Reduction reduction_of(const Call& call) {
  int64_t n_dims = call.tensors[0].tensor.dim();
  std::vector<int64_t> all(size_t(n_dims), 0);
  std::iota(all.begin(), all.end(), int64_t{0});
  // An empty list means all dimensions, like a missing one.
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
  for (size_t i = 1; i < call.tensors.size(); ++i) {  // out: it has the layout of the result
    if (call.tensors[i].tensor.dim() != int64_t(output.size())) return std::nullopt;
    factors.inputs.push_back(output);
    factors.added |= uint64_t{1} << i;
  }
  return factors;
}

MeshDims reduced_over(CallPlan& plan) {
  MeshDims over;
  for (Mesh::Dim i : Mesh::dims)
    if (plan.outputs[0].placements[i].is_partial()) over.push_back(i);
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

bool is_reduced(const Call& call, const CallPlan& plan) {
  for (Mesh::Dim dim : Mesh::dims)
    if (is_reduced_over(call, plan, plan.outputs[0], dim)) return true;
  return false;
}

at::ScalarType type_of_sum(const Call& call) {
  const c10::IValue* dtype = call.find("dtype");
  if (dtype && !dtype->isNone()) return dtype->toScalarType();
  at::ScalarType own = call.tensors[0].tensor.scalar_type();
  return at::isIntegralType(own, /*includeBool=*/true) ? at::kLong : own;
}

using Run = std::function<void(const Operator&, torch::jit::Stack&, const Mesh&)>;

// Keeps 16-bit partial sums in the accumulation type, so that they do not overflow before the total
// is known. All-reduces at once and rounds once.
Run reduced_wide(at::ScalarType type, size_t dtype, const MeshDims& over, const Run& term) {
  return [=](const Operator& op, torch::jit::Stack& stack, const Mesh& mesh) {
    stack[0] = stack[0].toTensor().to(type);
    stack[dtype] = at::toOpMathType(type);
    if (term)
      term(op, stack, mesh);
    else
      op.handle.callBoxed(&stack);
    stack = {all_reduced(stack[0].toTensor(), over, mesh, ReduceOp::sum).to(type)};
  };
}

// A sum or a mean. `is_linear`: the argument may be partial.
std::optional<CallPlan> added_up(const Call& call, bool is_linear, bool is_mean) {
  Reduction reduction = reduction_of(call);
  std::optional<Factors> factors = reduction_factors(call, reduction, ReduceOp::sum);
  at::ScalarType type = type_of_sum(call);
  if (!factors || (call.tensors.size() > 1 && (is_mean || is_narrow(type)))) return std::nullopt;
  if (is_linear && adds_up_in(call.tensors[0].tensor.scalar_type(), type))
    factors->linear = {1 | factors->added};
  CallPlan plan = plan_by_factors(call, *factors);
  // Parts may differ in size, so computes means from sums.
  if (is_mean && is_reduced(call, plan))
    plan.run = [reduction, n = double(count(call, reduction)), dtype = call.index_of("dtype")](
                   const Operator&, torch::jit::Stack& stack, const Mesh&) {
      at::Tensor sum = at::sum(stack[0].toTensor(), reduction.dims, reduction.keeps,
                               stack[size_t(dtype)].toOptional<at::ScalarType>());
      stack = {sum.div_(n)};
    };
  if (!is_narrow(type)) return plan;
  MeshDims over = reduced_over(plan);
  if (!over.empty()) plan.run = reduced_wide(type, size_t(call.index_of("dtype")), over, plan.run);
  return plan;
}

std::optional<CallPlan> sum(const Call& call) { return added_up(call, true, false); }
std::optional<CallPlan> nansum(const Call& call) { return added_up(call, false, false); }
std::optional<CallPlan> mean(const Call& call) { return added_up(call, true, true); }

// Booleans reduce as "any" or "all". A partial argument is reduced first.
Rule reduced(ReduceOp op) {
  return [op](const Call& call) -> std::optional<CallPlan> {
    std::optional<Factors> factors = reduction_factors(call, reduction_of(call), op);
    if (!factors) return std::nullopt;
    return plan_by_factors(call, *factors);
  };
}

// All ranks get the same answer.
std::optional<CallPlan> equal(const Call& call) {
  at::IntArrayRef sizes = call.tensors[0].sizes();
  if (call.tensors.size() < 2 || call.tensors[1].sizes() != sizes) return std::nullopt;
  CallPlan plan = plan_by_factors(call, *pointwise_factors(call, sizes));
  plan.outputs.clear();
  MeshDims over;
  for (Mesh::Dim dim : Mesh::dims)
    if (plan.inputs[0][dim].is_sharded()) over.push_back(dim);
  if (over.empty()) return plan;
  plan.run = [over](const Operator& op, torch::jit::Stack& stack, const Mesh& mesh) {
    at::TensorOptions options = stack[0].toTensor().options().dtype(at::kInt);
    op.handle.callBoxed(&stack);
    at::Tensor own = at::full({}, int(stack[0].toBool()), options);
    stack = {all_reduced(own, over, mesh, ReduceOp::min).item().toBool()};
  };
  return plan;
}

}  // namespace

bool adds_up_in(at::ScalarType from, at::ScalarType to) {
  bool is_wider_float =
      (at::isFloatingType(from) || at::isComplexType(from)) && c10::promoteTypes(from, to) == to;
  return from == to || is_wider_float;
}

bool is_reduced_over(const Call& call, const CallPlan& plan, const OutputPlan& output,
                     Mesh::Dim dim) {
  if (!output.placements[dim].is_partial()) return false;
  return std::none_of(plan.inputs.begin(), plan.inputs.end(),
                      [&](const Placements& placements) { return placements[dim].is_partial(); });
}

const RuleTable& reduction_rules() {
  static const RuleTable table = {
      {"aten::sum", with_cost(sum, {.passes = 1.5, .starts = 1.5, .workspace = workspace_of_sum})},
      {"aten::nansum", nansum},
      {"aten::mean", mean},
      {"aten::count_nonzero", reduced(ReduceOp::sum)},
      {"aten::any", reduced(ReduceOp::max)},
      {"aten::all", reduced(ReduceOp::min)},
      {"aten::equal", equal},
  };
  return table;
}

}  // namespace redco::sharding
