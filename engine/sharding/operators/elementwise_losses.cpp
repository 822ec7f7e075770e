// Rules for elementwise losses that are summed or averaged.

#include "rules.h"

#include <ATen/OpMathType.h>
#include <ATen/core/Reduction.h>
#include <c10/util/accumulate.h>

namespace redco::sharding {

namespace {

Sizes sizes_of_all(const Call& call) {
  Sizes sizes;
  for (const TensorArgument& argument : call.tensors)
    if (argument.tensor.dim() >= int64_t(sizes.size()))
      sizes = Sizes(argument.sizes().begin(), argument.sizes().end());
  return sizes;
}

int64_t reduction_in(const Call& call) { return call.integer("reduction", at::Reduction::Mean); }

// Computes the loss of each element as one process does, and adds the losses in the accumulation
// type. All-reduces the sum at once and divides it by the number of elements on all ranks.
std::optional<CallPlan> forward(const Call& call) {
  Sizes sizes = sizes_of_all(call);
  std::optional<Factors> factors = pointwise_factors(call, sizes);
  if (!factors || call.find("out")) return std::nullopt;
  int64_t reduction = reduction_in(call);
  if (reduction == at::Reduction::None) return plan_by_factors(call, *factors);
  factors->outputs[0].clear();
  CallPlan plan = plan_by_factors(call, *factors);
  MeshDims over = reduced_over(plan);
  if (over.empty()) return plan;
  double n = reduction == at::Reduction::Mean ? double(c10::multiply_integers(sizes)) : 1;
  plan.run = [over, n, place = size_t(call.index_of("reduction"))](
                 const Operator& op, torch::jit::Stack& stack, const Mesh& mesh) {
    stack[place] = int64_t(at::Reduction::None);
    op.handle.callBoxed(&stack);
    at::Tensor losses = stack[0].toTensor();
    at::Tensor sum = losses.sum(at::toOpMathType(losses.scalar_type()));
    stack = {all_reduced(sum, over, mesh, ReduceOp::sum).div_(n).to(losses.scalar_type())};
  };
  return plan;
}

// Scales the gradient by the local share of elements, because the kernels divide by the local
// number. Dividing by the global number could underflow in 16 bits.
std::optional<CallPlan> backward(const Call& call) {
  std::optional<Factors> factors = pointwise_factors(call, sizes_of_all(call));
  if (!factors || call.find("grad_input")) return std::nullopt;
  factors->linear = {1};  // the gradient
  CallPlan plan = plan_by_factors(call, *factors);
  int self = call.tensor_of("self");
  if (reduction_in(call) != at::Reduction::Mean || self < 0) return plan;
  const TensorArgument& argument = call.tensors[size_t(self)];
  auto n = double(argument.tensor.numel());
  auto own = double(
      c10::multiply_integers(local_sizes(argument.sizes(), plan.inputs[size_t(self)], *call.mesh)));
  if (own == n) return plan;
  plan.run = [share = own / n](const Operator& op, torch::jit::Stack& stack, const Mesh&) {
    stack[0] = stack[0].toTensor() * share;
    op.handle.callBoxed(&stack);
  };
  return plan;
}

}  // namespace

const RuleTable& elementwise_loss_rules() {
  static const RuleTable table = {
      {"aten::mse_loss", forward},
      {"aten::mse_loss_backward", backward},
      {"aten::smooth_l1_loss", forward},
      {"aten::smooth_l1_loss_backward", backward},
      {"aten::huber_loss", forward},
      {"aten::huber_loss_backward", backward},
      {"aten::soft_margin_loss", forward},
      {"aten::soft_margin_loss_backward", backward},
      {"aten::binary_cross_entropy", forward},
      {"aten::binary_cross_entropy_backward", backward},
      {"aten::binary_cross_entropy_with_logits", forward},
  };
  return table;
}

}  // namespace redco::sharding
