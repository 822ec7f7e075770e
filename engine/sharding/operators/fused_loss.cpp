// The rule for linear_cross_entropy, whose logits are never held at once. Rows and classes may be
// split; split classes cost one all-gather per block, of one number per row.

#include "../../kernels/linear_cross_entropy.h"
#include "../tensor/split.h"
#include "gpu_bytes.h"
#include "rules.h"

namespace redco::sharding {

using namespace kernels;

namespace {

// The maximum length over ranks of the parts of a dimension.
int64_t longest_part(int64_t size, const Placements& placements, int64_t dim, const Mesh& mesh) {
  for (Mesh::Dim mesh_dim : splitting(placements, dim))
    size = Split(placements[mesh_dim], size, mesh.size(mesh_dim)).longest_part();
  return size;
}

std::optional<CallPlan> linear_cross_entropy(const Call& call) {
  enum : int8_t { row, in, label };
  const bool keeps_rows = call.boolean("keeps_rows", false);
  auto factors =
      named_factors(call,
                    {{"x", {row, in}},
                     {"weight", {label, in}},
                     {"bias", {label}},
                     {"labels", {row}},
                     {"row_weights", {row}}},
                    {keeps_rows ? Letters{row} : Letters{}, {row, in}, {label, in}, {label}});
  if (!factors) return std::nullopt;
  factors->whole = uint64_t{1} << in;
  refuse_blocks(call, *factors, label);
  CallPlan plan = plan_by_factors(call, *factors);
  int64_t n_classes = call.tensors[1].sizes()[0];
  Span own = own_span(n_classes, plan.inputs[1], 0, *call.mesh);
  MeshDims over = splitting(plan.inputs[1], 0);
  if (over.empty()) return plan;
  int64_t n_most = longest_part(n_classes, plan.inputs[1], 0, *call.mesh);
  int64_t n_most_rows = longest_part(call.tensors[0].sizes()[0], plan.inputs[0], 0, *call.mesh);
  plan.run = [=](const Operator&, torch::jit::Stack& stack, const Mesh& mesh) {
    auto over_all = [&](const at::Tensor& own) { return normalizer_over(own, over, mesh); };
    auto [total, d_x, d_weight, d_bias] = linear_cross_entropy_part(
        stack[0].toTensor(), stack[1].toTensor(), stack[2].toOptional<at::Tensor>(),
        stack[3].toTensor(), stack[4].toInt(), stack[5].toDouble(),
        {stack[6].toBool(), stack[7].toBool(), stack[8].toBool()},
        {stack[9].toBool(), stack[10].toOptional<at::Tensor>()},
        {own.begin, own.end, n_classes, n_most, n_most_rows, over_all});
    stack = {total, d_x, d_weight, d_bias};
  };
  return plan;
}

}  // namespace

const RuleTable& fused_loss_rules() {
  static const RuleTable table = [] {
    OperatorFacts facts = linear_cross_entropy;
    facts.is_product = true;
    facts.gpu = {.starts = 25, .inside = inside_linear_cross_entropy};
    return RuleTable{{"redco::linear_cross_entropy", facts}};
  }();
  return table;
}

}  // namespace redco::sharding
