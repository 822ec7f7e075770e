// Rules for embedding tables. If the rows are split, each rank looks up its own rows and returns
// zeros for the others, as a partial sum.

#include "rules.h"

#include <ATen/ops/zeros.h>

namespace redco::sharding {

namespace {

// Factors: 0 the row of the table, 1 the column, then the dimensions of the indices.
std::optional<CallPlan> embedding(const Call& call) {
  const TensorArgument &weight = call.tensors[0], &indices = call.tensors[1];
  if (call.tensors.size() != 2) return std::nullopt;  // out
  Letters ids = letters(indices.tensor.dim(), 2), result = ids;
  result.push_back(1);
  Factors factors{{{0, 1}, ids}, {result}};
  refuse_blocks(call, factors, 0);
  CallPlan plan = plan_by_factors(call, factors);
  if (splitting(plan.inputs[0], 0).empty()) return plan;
  int64_t n_rows = weight.sizes()[0];
  Span rows = own_span(n_rows, plan.inputs[0], 0, *call.mesh);
  plan.run = [n_rows, rows](const Operator& op, torch::jit::Stack& stack, const Mesh&) {
    const at::Tensor table = stack[0].toTensor(), ids = stack[1].toTensor();
    check_range(op, ids, n_rows);
    if (rows.length() == 0) {
      std::vector<int64_t> sizes = ids.sizes().vec();
      sizes.push_back(table.size(1));
      stack = {at::zeros(sizes, table.options())};
      return;
    }
    at::Tensor elsewhere = is_outside(ids, rows);
    stack[1] = (ids - rows.begin).masked_fill_(elsewhere, 0);
    op.handle.callBoxed(&stack);
    stack = {stack[0].toTensor().masked_fill_(elsewhere.unsqueeze(-1), 0)};
  };
  return plan;
}

std::optional<CallPlan> embedding_backward(const Call& call) {
  const TensorArgument& indices = call.tensors[1];
  if (call.tensors.size() != 2) return std::nullopt;  // out
  Letters ids = letters(indices.tensor.dim(), 2), grad = ids;
  grad.push_back(1);
  Factors factors{{grad, ids}, {{0, 1}}};
  // The result may stay partial, unless the table has more elements than the incoming gradient. In
  // that case mp splits the rows, and a gradient that mp splits must not make the result partial.
  Call seen = call;
  TensorArgument& looked_up = seen.tensors[0];
  if (call.integer("num_weights", 0) * looked_up.sizes().back() <= looked_up.tensor.numel())
    factors.linear = {may_overflow(looked_up.tensor.scalar_type()) ? uint64_t{0} : uint64_t{1}};
  else if (looked_up.placements[Mesh::mp].is_sharded() &&
           looked_up.placements[Mesh::mp].dim < indices.tensor.dim())
    looked_up.placements[Mesh::mp] = {};
  // Index frequencies must be counted over all indices, so these stay whole.
  if (call.boolean("scale_grad_by_freq", false))
    for (int8_t id : ids) factors.whole |= uint64_t{1} << id;
  CallPlan plan = plan_by_factors(seen, factors);
  plan.outputs[0].sizes[0] = -1;  // no argument has this size
  return plan;
}

}  // namespace

const RuleTable& embedding_rules() {
  static const RuleTable table = [] {
    OperatorFacts forward = embedding;
    forward.looks_up_rows = true;
    return RuleTable{
        {"aten::embedding", forward},
        {"aten::embedding_dense_backward", with_cost(embedding_backward, {.starts = 16})}};
  }();
  return table;
}

}  // namespace redco::sharding
