// Rules for connectionist temporal classification: each rank computes the rows of its part of the
// batch. Classes and time are whole.

#include "rules.h"

#include <ATen/ops/constant_pad_nd.h>

#include <algorithm>
#include <limits>

namespace redco::sharding {

namespace {

// The batch is the only factor.
constexpr int8_t whole = -1;

const TensorArgument& log_probs_of(const Call& call) {
  return call.tensors[size_t(call.tensor_of("log_probs"))];
}

// Returns nullopt if one list holds the targets of all rows, one row after another.
std::optional<Factors> ctc_factors(const Call& call, std::vector<Letters> outputs) {
  if (!call.find("input_lengths")->isIntList()) return std::nullopt;
  std::optional<Factors> factors = named_factors(call,
                                                 {{"grad", {batch}},
                                                  {"log_probs", {whole, batch, whole}},
                                                  {"targets", {batch, whole}},
                                                  {"neg_log_likelihood", {batch}},
                                                  {"log_alpha", {batch, whole, whole}}},
                                                 std::move(outputs));
  if (!factors) return std::nullopt;
  refuse_blocks(call, *factors, batch);
  if (!all_ranks_hold(call, *factors, batch, log_probs_of(call).sizes()[1]))
    factors->whole |= 1 << batch;
  return factors;
}

// Cuts the lengths to those of this rank's rows.
void keep_own_lengths(const Call& call, CallPlan& plan) {
  Span own = own_span(log_probs_of(call).sizes()[1],
                      plan.inputs[size_t(call.tensor_of("log_probs"))], 1, *call.mesh);
  for (std::string_view name : {"input_lengths", "target_lengths"}) {
    std::vector<int64_t> lengths = call.find(name)->toIntVector();
    set_argument(call, plan, name,
                 std::vector<int64_t>(lengths.begin() + own.begin, lengths.begin() + own.end));
  }
}

std::optional<CallPlan> ctc_loss(const Call& call) {
  std::optional<Factors> factors = ctc_factors(call, {{batch}, {batch, whole, whole}});
  if (!factors) return std::nullopt;
  CallPlan plan = plan_by_factors(call, *factors);
  keep_own_lengths(call, plan);
  std::vector<int64_t> lengths = call.find("target_lengths")->toIntVector();
  int64_t longest = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  plan.run = [states = 2 * longest + 1](const Operator& op, torch::jit::Stack& stack, const Mesh&) {
    op.handle.callBoxed(&stack);
    // Pads the table of a rank, which is only as wide as its longest target needs.
    at::Tensor table = stack[1].toTensor();
    if (table.size(2) == states) return;
    stack[1] = at::constant_pad_nd(table, {0, states - table.size(2)},
                                   -std::numeric_limits<double>::infinity());
  };
  return plan;
}

std::optional<CallPlan> ctc_loss_backward(const Call& call) {
  std::optional<Factors> factors = ctc_factors(call, {{whole, batch, whole}});
  if (!factors) return std::nullopt;
  CallPlan plan = plan_by_factors(call, *factors);
  keep_own_lengths(call, plan);
  plan.run = run_on_contiguous;
  return plan;
}

}  // namespace

const RuleTable& ctc_loss_rules() {
  OperatorFacts losses = ctc_loss;
  // The shape of the losses is known. That of the state for backward depends on the lengths.
  losses.has_known_shape = [](const Call&) { return true; };
  static const RuleTable table = {
      {"aten::_ctc_loss", losses},
      {"aten::_ctc_loss_backward", ctc_loss_backward},
  };
  return table;
}

}  // namespace redco::sharding
