// Recurrent layers and cells: examples are on their own, hidden units are whole.

#include "rules.h"

namespace redco {

namespace {

// oneDNN's layer. input: [time, batch, ...], or [batch, time, ...]; states: [..., batch, hidden].
// What is kept for backward lies as the kernel likes, and is of no use to others.
std::optional<Plan> layer(const Call& call) {
  int input = call.tensor_of("input");
  bool is_batch_first = call.boolean("batch_first", false);
  const c10::IValue* batch_sizes = call.find("batch_sizes");
  if (input < 0 || call.tensors[size_t(input)].tensor.dim() != 3) return std::nullopt;
  if (batch_sizes && !batch_sizes->toIntVector().empty()) return std::nullopt;  // packed
  (void)is_batch_first;
  return std::nullopt;
}

// Gates: [batch, gates]; states: [batch, hidden].
std::optional<Plan> cell(const Call& call) {
  Factors factors;
  for (const TensorArgument& argument : call.tensors) {
    Letters& own = factors.inputs.emplace_back(size_t(argument.tensor.dim()), int8_t(-1));
    if (own.size() > 1) own[0] = 0;
  }
  factors.outputs.assign(call.op.returned.size(), Letters{0, -1});
  return plan_by_factors(call, factors);
}

}  // namespace

const RuleTable& recurrent_rules() {
  static const RuleTable table = {};
  return table;
}

}  // namespace redco
