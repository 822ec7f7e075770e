// Rules for amax, amin, aminmax, max and min.

#include "rules.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/full.h>

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

// Fills the results of a rank whose part is empty.
void give_bounds(const Reduction& reduction, const std::vector<ReduceOp>& ops,
                 torch::jit::Stack& stack) {
  at::Tensor self = stack[0].toTensor();
  at::Tensor count = at::sum(at::ones_like(self, at::kLong), reduction.dims, reduction.keeps);
  stack.clear();
  for (ReduceOp op : ops)
    stack.emplace_back(at::full(count.sizes(), bound(self.scalar_type(), op), self.options()));
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

// Three overloads: over all elements, along a dimension, and of two tensors.
Rule by_overload(ReduceOp op) {
  Rule of_all = extremes({op});
  return [of_all](const Call& call) -> std::optional<CallPlan> {
    if (call.find("other")) return pointwise_rules().at("").rule(call);
    return call.find("dim") ? reduced_along_dim(call) : of_all(call);
  };
}

}  // namespace

const RuleTable& extremes_rules() {
  static const RuleTable table = {
      {"aten::amax", extremes({ReduceOp::max})},
      {"aten::amin", extremes({ReduceOp::min})},
      {"aten::aminmax", extremes({ReduceOp::min, ReduceOp::max})},
      {"aten::max", by_overload(ReduceOp::max)},
      {"aten::min", by_overload(ReduceOp::min)},
  };
  return table;
}

}  // namespace redco::sharding
