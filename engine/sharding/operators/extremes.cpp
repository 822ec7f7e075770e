// Rules for amax, amin, aminmax, max, min, argmax and argmin.

#include "rules.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/max.h>
#include <ATen/ops/min.h>

#include <limits>

namespace redco::sharding {

namespace {

// Returns the identity of a reduction, as the extreme of an empty part.
at::Scalar bound(at::ScalarType type, ReduceOp op) {
  bool is_max = op == ReduceOp::max;
  if (type == at::kBool) return !is_max;
  if (at::isFloatingType(type)) {
    double infinity = std::numeric_limits<double>::infinity();
    return is_max ? -infinity : infinity;
  }
  at::Scalar result;
  AT_DISPATCH_INTEGRAL_TYPES(type, "bound", [&] {
    result =
        is_max ? std::numeric_limits<scalar_t>::lowest() : std::numeric_limits<scalar_t>::max();
  });
  return result;
}

// Returns the extremes of an empty part.
at::Tensor bounds(const at::Tensor& empty, const Reduction& reduction, ReduceOp op) {
  at::Tensor count = at::sum(at::ones_like(empty, at::kLong), reduction.dims, reduction.keeps);
  return at::full(count.sizes(), bound(empty.scalar_type(), op), empty.options());
}

// Fills the results of a rank whose part is empty.
void give_bounds(const Reduction& reduction, const std::vector<ReduceOp>& ops,
                 torch::jit::Stack& stack) {
  at::Tensor self = stack[0].toTensor();
  stack.clear();
  for (ReduceOp op : ops) stack.emplace_back(bounds(self, reduction, op));
}

// `ops`: the reduction of each result.
Rule extremes(std::vector<ReduceOp> ops) {
  return [ops](const Call& call) -> std::optional<CallPlan> {
    Reduction reduction = reduction_of(call);
    std::optional<Factors> factors = reduction_factors(call, reduction, ops[0]);
    if (!factors || call.tensors.size() > 1) return std::nullopt;
    // An empty tensor has no extreme, so the operator itself throws.
    for (int64_t dim : reduction.dims)
      if (call.tensors[0].sizes()[size_t(dim)] == 0) return std::nullopt;
    factors->outputs.resize(ops.size(), factors->outputs[0]);
    CallPlan plan = plan_by_factors(call, *factors);
    bool is_reduced = false;
    for (size_t i = 0; i < ops.size(); ++i)
      for (Placement& placement : plan.outputs[i].placements)
        if (placement.is_partial()) {
          placement.op = ops[i];
          is_reduced = true;
        }
    if (is_reduced)
      plan.run = [=](const Operator& op, torch::jit::Stack& stack, const Mesh&) {
        if (stack[0].toTensor().numel() == 0)
          give_bounds(reduction, ops, stack);
        else
          op.handle.callBoxed(&stack);
      };
    return plan;
  };
}

struct Extreme {
  at::Tensor value, place;
};

// Returns the extreme along a dimension, the first of equal ones; NaN is beyond all numbers.
Extreme extreme_along(const at::Tensor& x, int64_t dim, bool keeps, ReduceOp op) {
  auto [value, place] = op == ReduceOp::max ? at::max(x, dim, keeps) : at::min(x, dim, keeps);
  return {value, place};
}

// That of the part of a split dimension which this rank holds, with its place in the whole.
Extreme extreme_of_part(const at::Tensor& x, const Reduction& reduction, ReduceOp op,
                        int64_t begin) {
  const int64_t dim = reduction.dims[0];
  if (x.size(dim) > 0) {
    Extreme own = extreme_along(x, dim, reduction.keeps, op);
    return {own.value, own.place + begin};
  }
  const at::Tensor value = bounds(x, reduction, op);
  return {value, at::full_like(value, begin, at::kLong)};
}

// Extremes along a dimension with their places; argmax and argmin return only these. Ranks that
// split the dimension exchange the extremes of their parts.
Rule with_places(ReduceOp op, bool returns_values) {
  return [=](const Call& call) -> std::optional<CallPlan> {
    const TensorArgument& x = call.tensors[0];
    const int64_t n_dims = x.tensor.dim();
    const std::optional<std::vector<int64_t>> dims = call.dims("dim", n_dims);
    if (call.tensors.size() > 1 || n_dims == 0 || !dims || dims->size() != 1 ||
        x.sizes()[size_t(dims->front())] == 0)
      return reduced_along_dim(call);
    const int64_t dim = dims->front(), size = x.sizes()[size_t(dim)];
    const Reduction reduction{*dims, call.boolean("keepdim", false)};
    Factors factors = *reduction_factors(call, reduction, op);
    factors.outputs.resize(call.op.returned.size(), factors.outputs[0]);
    refuse_blocks(call, factors, dim);
    CallPlan plan = plan_by_factors(call, factors);
    const MeshDims over = reduced_over(plan);
    const Placements placements = plan.inputs[0];
    if (!over.empty())
      plan.run = [=](const Operator&, torch::jit::Stack& stack, const Mesh& mesh) {
        const Span own = own_span(size, placements, dim, mesh);
        Extreme found = extreme_of_part(stack[0].toTensor(), reduction, op, own.begin);
        for (size_t i = over.size(); i-- > 0;) {  // each dim splits the parts of the dims before
          const at::Tensor values = mesh.group(over[i]).all_gather(found.value.contiguous());
          const at::Tensor places = mesh.group(over[i]).all_gather(found.place.contiguous());
          const Extreme best = extreme_along(values, 0, /*keeps=*/true, op);
          found = {best.value.squeeze(0), places.gather(0, best.place).squeeze(0)};
        }
        stack.clear();
        if (returns_values) stack.emplace_back(found.value);
        stack.emplace_back(found.place);
      };
    return plan;
  };
}

// Three overloads: over all elements, along a dimension, and of two tensors.
Rule by_overload(ReduceOp op) {
  Rule of_all = extremes({op}), along = with_places(op, /*returns_values=*/true);
  return [=](const Call& call) -> std::optional<CallPlan> {
    if (call.find("other")) return pointwise_rules().at("").rule(call);
    return call.find("dim") ? along(call) : of_all(call);
  };
}

}  // namespace

const RuleTable& extremes_rules() {
  static const RuleTable table = {
      {"aten::amax", extremes({ReduceOp::max})},
      {"aten::amin", extremes({ReduceOp::min})},
      {"aten::aminmax", extremes({ReduceOp::min, ReduceOp::max})},
      {"aten::argmax", with_places(ReduceOp::max, /*returns_values=*/false)},
      {"aten::argmin", with_places(ReduceOp::min, /*returns_values=*/false)},
      {"aten::max", by_overload(ReduceOp::max)},
      {"aten::min", by_overload(ReduceOp::min)},
  };
  return table;
}

}  // namespace redco::sharding
