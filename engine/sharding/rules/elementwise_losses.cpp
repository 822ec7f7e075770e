// Losses of each element that are summed, or averaged over all of them.

#include "rules.h"

#include <ATen/core/Reduction.h>

namespace redco {

namespace {

Sizes sizes_of_all(const Call& call) {
  Sizes sizes;
  for (const TensorArgument& argument : call.tensors)
    if (argument.tensor.dim() >= int64_t(sizes.size()))
      sizes = Sizes(argument.sizes().begin(), argument.sizes().end());
  return sizes;
}

int64_t product(const Sizes& sizes) {
  int64_t n = 1;
  for (int64_t size : sizes) n *= size;
  return n;
}

// Parts differ in size: their sums are what adds up.
std::optional<Plan> summed(const Call& call, bool is_backward) {
  Sizes sizes = sizes_of_all(call);
  std::optional<Factors> factors = pointwise_factors(call, sizes);
  if (!factors || call.find("out") || call.find("grad_input")) return std::nullopt;
  bool is_each = call.integer("reduction", at::Reduction::Mean) == at::Reduction::None;
  if (is_backward)
    factors->linear = {1};  // the gradient
  else if (!is_each)
    factors->outputs[0].clear();
  Plan plan = plan_by_factors(call, *factors);
  if (call.integer("reduction", at::Reduction::Mean) != at::Reduction::Mean) return plan;
  auto place = size_t(call.index_of("reduction"));
  plan.run = [=, n = double(product(sizes))](const Operator& op, torch::jit::Stack& stack,
                                             const Mesh&) {
    stack[place] = int64_t(at::Reduction::Sum);
    if (is_backward) stack[0] = stack[0].toTensor() / n;
    op.handle.callBoxed(&stack);
    if (!is_backward) stack = {stack[0].toTensor() / n};
  };
  return plan;
}

std::optional<Plan> forward(const Call& call) { return summed(call, false); }
std::optional<Plan> backward(const Call& call) { return summed(call, true); }

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

}  // namespace redco
