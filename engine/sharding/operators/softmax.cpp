// Rules for softmax and related operators. Over a split dimension, ranks exchange only one number
// per row.

#include "rules.h"

namespace redco::sharding {

namespace {

// Computes an operator over a dimension that `over` splits, from the local arguments.
using OverParts = at::Tensor (*)(const torch::jit::Stack& arguments, int64_t dim,
                                 const MeshDims& over, const Mesh& mesh);

at::ScalarType forward_type(const torch::jit::Stack& arguments) {
  const c10::IValue& wanted = arguments[2];  // half_to_float, or a dtype
  if (wanted.isInt()) return wanted.toScalarType();
  return wanted.isBool() && wanted.toBool() ? at::kFloat : arguments[0].toTensor().scalar_type();
}

at::Tensor log_softmax(const torch::jit::Stack& arguments, int64_t dim, const MeshDims& over,
                       const Mesh& mesh) {
  at::Tensor x = widened(arguments[0].toTensor());
  return (x - softmax_normalizer(x, dim, over, mesh)).to(forward_type(arguments));
}

at::Tensor softmax(const torch::jit::Stack& arguments, int64_t dim, const MeshDims& over,
                   const Mesh& mesh) {
  at::Tensor x = widened(arguments[0].toTensor());
  return (x - softmax_normalizer(x, dim, over, mesh)).exp_().to(forward_type(arguments));
}

// Returns zeros for a row of -inf.
at::Tensor safe_softmax(const torch::jit::Stack& arguments, int64_t dim, const MeshDims& over,
                        const Mesh& mesh) {
  at::Tensor x = widened(arguments[0].toTensor());
  at::Tensor most = softmax_normalizer(x, dim, over, mesh);
  most = most.masked_fill(most.isneginf(), 0);
  return (x - most).exp_().to(forward_type(arguments));
}

at::Tensor log_softmax_backward(const torch::jit::Stack& arguments, int64_t dim,
                                const MeshDims& over, const Mesh& mesh) {
  at::Tensor grad = widened(arguments[0].toTensor()), output = widened(arguments[1].toTensor());
  at::Tensor total = all_reduced(grad.sum(dim, true), over, mesh, ReduceOp::sum);
  return (grad - output.exp().mul_(total)).to(arguments[3].toScalarType());
}

at::Tensor softmax_backward(const torch::jit::Stack& arguments, int64_t dim, const MeshDims& over,
                            const Mesh& mesh) {
  at::Tensor grad = widened(arguments[0].toTensor()), output = widened(arguments[1].toTensor());
  at::Tensor weighted = grad * output;
  at::Tensor total = all_reduced(weighted.sum(dim, true), over, mesh, ReduceOp::sum);
  return weighted.sub_(output * total).to(arguments[3].toScalarType());
}

Rule along_dim(OverParts over_parts) {
  return [over_parts](const Call& call) -> std::optional<CallPlan> {
    int64_t n_dims = call.tensors[0].tensor.dim();
    int64_t dim = call.dims("dim", n_dims)->front();
    Factors factors;
    for (const TensorArgument& argument : call.tensors) {
      if (argument.tensor.dim() != n_dims) return std::nullopt;
      factors.inputs.push_back(letters(n_dims));
      if (argument.is_written && dim >= 0) factors.whole = uint64_t{1} << dim;
    }
    factors.outputs.push_back(letters(n_dims));
    CallPlan plan = plan_by_factors(call, factors);
    MeshDims over = splitting(plan.inputs[0], dim);
    if (!over.empty())
      plan.run = [=](const Operator&, torch::jit::Stack& stack, const Mesh& mesh) {
        stack = {over_parts(stack, dim, over, mesh)};
      };
    return plan;
  };
}

}  // namespace

const RuleTable& softmax_rules() {
  static const RuleTable table = {
      {"aten::_softmax", along_dim(softmax)},
      {"aten::_log_softmax", along_dim(log_softmax)},
      {"aten::_safe_softmax", along_dim(safe_softmax)},
      {"aten::_softmax_backward_data", along_dim(softmax_backward)},
      {"aten::_log_softmax_backward_data", along_dim(log_softmax_backward)},
  };
  return table;
}

}  // namespace redco::sharding
