// Rules for recurrent layers and cells. Examples may be split; hidden units may not.

#include "rules.h"

#include <algorithm>

namespace redco::sharding {

namespace {

// In every tensor of two or more dimensions, except weights, the batch is the last dimension but
// one.
Letters letters_of_example(int64_t n_dims) {
  Letters result(size_t(n_dims), int8_t(-1));
  if (n_dims > 1) result[size_t(n_dims) - 2] = 0;
  return result;
}

std::vector<Letters> inputs_of(const Call& call) {
  std::vector<Letters> inputs;
  for (const TensorArgument& argument : call.tensors) {
    bool is_weight = call.op.schema().arguments()[argument.argument].name().rfind("weight", 0) == 0;
    int64_t n_dims = argument.tensor.dim();
    inputs.push_back(is_weight ? Letters(size_t(n_dims), int8_t(-1)) : letters_of_example(n_dims));
  }
  return inputs;
}

Letters letters_of_state(const Call& call) {
  return letters_of_example(call.tensors[size_t(call.tensor_of("hx_"))].tensor.dim());
}

// oneDNN's layer. Sequences: [time, batch, ...]; states: [..., batch, hidden]. The last result is
// an opaque state for backward.
std::optional<CallPlan> layer(const Call& call) {
  const TensorArgument& input = call.tensors[size_t(call.tensor_of("input"))];
  const c10::IValue* batch_sizes = call.find("batch_sizes");
  if (input.tensor.dim() != 3 || !batch_sizes->toIntVector().empty()) return std::nullopt;
  Letters sequence = letters_of_example(3), state = letters_of_state(call);
  Factors factors{inputs_of(call), {sequence, state, state, {}}};
  if (!all_ranks_hold(call, factors, 0, input.sizes()[1])) factors.whole = 1;
  CallPlan plan = plan_by_factors(call, factors);
  make_whole(plan.outputs[3]);
  plan.run = run_on_contiguous;
  return plan;
}

// Returns gradients of the input, two weights, two biases and two states. The opaque state fits
// only the parts of forward, so backward runs on the same placements.
std::optional<CallPlan> layer_backward(const Call& call) {
  const TensorArgument& input = call.tensors[size_t(call.tensor_of("input"))];
  const c10::IValue* batch_sizes = call.find("batch_sizes");
  if (input.tensor.dim() != 3 || !batch_sizes->toIntVector().empty()) return std::nullopt;
  Letters sequence = letters_of_example(3), state = letters_of_state(call), weight = {-1, -1},
          bias = {-1};
  Factors factors{inputs_of(call), {sequence, weight, weight, bias, bias, state, state}};
  const Placements& forward = call.tensors[size_t(call.tensor_of("output"))].placements;
  Call there = call;
  for (size_t i = 0; i < there.tensors.size(); ++i) {
    const Letters& own = factors.inputs[i];
    for (Mesh::Dim dim : Mesh::dims) {
      Placement& placement = there.tensors[i].placements[dim] = forward[dim];
      auto batch = std::find(own.begin(), own.end(), 0);
      placement.dim = int32_t(batch - own.begin());
      if (batch == own.end()) placement = {};
    }
  }
  CallPlan plan = plan_by_factors(there, factors);
  plan.run = run_on_contiguous;
  return plan;
}

// CUDA's fused cells, with gates and states of [batch, ...]. The first `n_examples` results also
// have a batch; the others are gradients of biases.
Rule cell(size_t n_examples) {
  return [n_examples](const Call& call) -> std::optional<CallPlan> {
    Factors factors{inputs_of(call), {}};
    for (size_t i = 0; i < call.op.returned.size(); ++i)
      factors.outputs.push_back(letters_of_example(i < n_examples ? 2 : 1));
    return plan_by_factors(call, factors);
  };
}

}  // namespace

const RuleTable& recurrent_rules() {
  static const RuleTable table = {
      {"aten::mkldnn_rnn_layer", layer},
      {"aten::mkldnn_rnn_layer_backward", layer_backward},
      {"aten::_thnn_fused_lstm_cell", cell(3)},
      {"aten::_thnn_fused_lstm_cell_backward_impl", cell(2)},
      {"aten::_thnn_fused_gru_cell", cell(2)},
      {"aten::_thnn_fused_gru_cell_backward", cell(3)},
  };
  return table;
}

}  // namespace redco::sharding
