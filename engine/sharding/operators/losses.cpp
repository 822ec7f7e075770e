// Rules for negative log-likelihood losses. Each rank looks up its own targets and classes, then
// one all-reduce adds up the loss and the total weight.

#include "rules.h"

#include <ATen/OpMathType.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/stack.h>

namespace redco::sharding {

namespace {

// Marks a target that has no local class: the local kernels ignore it.
constexpr int64_t nowhere = -1;

// Converts targets to local classes.
at::Tensor own_targets(const at::Tensor& target, const Span& classes, int64_t ignore_index) {
  at::Tensor elsewhere = is_outside(target, classes).logical_or_(target.eq(ignore_index));
  return (target - classes.begin).masked_fill_(elsewhere, nowhere);
}

// The total weight of the targets on this rank.
at::Tensor total_weight(const at::Tensor& own, const at::Tensor& weight,
                        const at::TensorOptions& options) {
  at::Tensor is_own = own.ne(nowhere);
  if (!weight.defined() || weight.numel() == 0) return is_own.sum().to(options.dtype());
  at::Tensor each = weight.index_select(0, own.clamp_min(0).reshape({-1})).to(options.dtype());
  // masked_fill instead of a product: infinity times 0 is NaN.
  return each.masked_fill_(is_own.logical_not().reshape({-1}), 0).sum();
}

// Factors: 0 the class, then the dimensions of the target.
struct Shape {
  Letters scores, target;
  int64_t class_dim;

  explicit Shape(int64_t n_dims) : target(letters(n_dims - 1, 1)), class_dim(n_dims == 1 ? 0 : 1) {
    scores = target;
    scores.insert(scores.begin() + class_dim, int8_t(0));
  }
};

// By name, since the weight is optional.
std::optional<Factors> loss_factors(const Call& call, const Shape& shape) {
  Factors factors;
  for (const TensorArgument& argument : call.tensors) {
    if (argument.is_written) return std::nullopt;
    const std::string& name = call.op.schema().arguments()[argument.argument].name();
    Letters letters;
    if (name == "self") letters = shape.scores;
    if (name == "target") letters = shape.target;
    if (name == "weight") letters = {0};
    if (name == "grad_output" && argument.tensor.dim() > 0) letters = shape.target;
    if (int64_t(letters.size()) != argument.tensor.dim()) return std::nullopt;
    factors.inputs.push_back(letters);
  }
  refuse_blocks(call, factors, 0);
  return factors;
}

int64_t n_classes(const Call& call, const Shape& shape) {
  return call.tensors[size_t(call.tensor_of("self"))].sizes()[size_t(shape.class_dim)];
}

Span own_classes(const Call& call, const CallPlan& plan, const Shape& shape) {
  auto self = size_t(call.tensor_of("self"));
  return own_span(n_classes(call, shape), plan.inputs[self], shape.class_dim, *call.mesh);
}

std::optional<CallPlan> nll_loss_forward(const Call& call) {
  Shape shape(call.tensors[size_t(call.tensor_of("self"))].tensor.dim());
  std::optional<Factors> factors = loss_factors(call, shape);
  if (!factors) return std::nullopt;
  int64_t reduction = call.integer("reduction", at::Reduction::Mean);
  factors->outputs = {reduction == at::Reduction::None ? shape.target : Letters(), {}};
  CallPlan plan = plan_by_factors(call, *factors);
  MeshDims over;
  if (reduction != at::Reduction::None) over = reduced_over(plan);
  plan.outputs[1].placements = {};
  Span classes = own_classes(call, plan, shape);
  plan.run = [=, size = n_classes(call, shape)](const Operator& op, torch::jit::Stack& stack,
                                                const Mesh& mesh) {
    at::Tensor target = stack[1].toTensor();
    check_range(op, target.masked_fill(target.eq(stack[4].toInt()), 0), size);
    at::Tensor own = own_targets(target, classes, stack[4].toInt());
    at::Tensor weight = stack[2].isTensor() ? stack[2].toTensor() : at::Tensor();
    stack[1] = own;
    stack[4] = nowhere;
    // Losses by row, to be added in the accumulation type.
    stack[3] = int64_t(at::Reduction::None);
    op.handle.callBoxed(&stack);
    if (reduction == at::Reduction::None) return;
    at::Tensor losses = stack[0].toTensor();
    at::ScalarType wide = at::toOpMathType(losses.scalar_type());
    at::Tensor both =
        at::stack({losses.sum(wide), total_weight(own, weight, losses.options().dtype(wide))});
    both = all_reduced(both, over, mesh, ReduceOp::sum);
    at::Tensor loss = both[0], total = both[1].clone();
    if (reduction == at::Reduction::Mean) loss = loss / total;
    stack = {loss.to(losses.scalar_type(), /*non_blocking=*/false, /*copy=*/true),
             total.to(losses.scalar_type())};
  };
  return plan;
}

std::optional<CallPlan> nll_loss_backward(const Call& call) {
  Shape shape(call.tensors[size_t(call.tensor_of("self"))].tensor.dim());
  std::optional<Factors> factors = loss_factors(call, shape);
  if (!factors) return std::nullopt;
  factors->outputs = {shape.scores};
  CallPlan plan = plan_by_factors(call, *factors);
  Span classes = own_classes(call, plan, shape);
  plan.run = [classes](const Operator& op, torch::jit::Stack& stack, const Mesh&) {
    // The kernels write the gradient in the memory order of the scores, so makes the scores
    // row-major.
    stack[1] = stack[1].toTensor().contiguous();
    stack[2] = own_targets(stack[2].toTensor(), classes, stack[5].toInt());
    stack[5] = nowhere;
    op.handle.callBoxed(&stack);
  };
  return plan;
}

}  // namespace

const RuleTable& loss_rules() {
  static const RuleTable table = {
      {"aten::nll_loss_forward", nll_loss_forward},
      {"aten::nll_loss_backward", nll_loss_backward},
      {"aten::nll_loss2d_forward", nll_loss_forward},
      {"aten::nll_loss2d_backward", nll_loss_backward},
  };
  return table;
}

}  // namespace redco::sharding
