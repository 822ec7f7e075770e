// Rules for random operators: every rank draws the numbers of its local part.

#include "../../kernels/random/local_region.h"
#include "rules.h"

#include <redco/random.h>

#include <ATen/ops/empty.h>

namespace redco::sharding {

using namespace random;

namespace {

// The region of a tensor that this process holds.
Region region_of(at::IntArrayRef sizes, const Placements& placements, const Mesh& mesh) {
  Region region = Region::whole(sizes);
  for (size_t dim = 0; dim < sizes.size(); ++dim)
    region.starts[dim] = own_span(sizes[dim], placements, int64_t(dim), mesh).begin;
  return region;
}

const c10::IValue* generator_of(const Call& call) {
  const c10::IValue* generator = call.find("generator");
  return generator && generator->isGenerator() ? generator : nullptr;
}

// Whether a part is a box. A part in blocks is not.
bool is_box(const OutputPlan& output) {
  for (const Placement& placement : output.placements)
    if (placement.is_sharded() && placement.is_in_blocks()) return false;
  return true;
}

// A generator that is not counter-based is sequential, so every rank draws all numbers and keeps
// those of its part.
std::optional<CallPlan> drawn_everywhere(const Call& call, CallPlan plan, const Sizes& sizes) {
  if (call.tensors.size() > 1 || !call.tensors[0].is_written) return std::nullopt;
  plan.run = [sizes, placements = plan.outputs[0].placements](
                 const Operator& op, torch::jit::Stack& stack, const Mesh& mesh) {
    at::Tensor local = stack[0].toTensor();
    stack[0] = at::empty(sizes, local.options());
    op.handle.callBoxed(&stack);
    at::Tensor drawn = stack[0].toTensor();
    local.copy_(redistribute_local(drawn, sizes, drawn.strides(), {}, placements, mesh));
    stack = {local};
  };
  return plan;
}

// Draws the numbers of the part of a result with these sizes.
void draw_locally(const Call& call, CallPlan& plan, const Sizes& sizes) {
  plan.run = [sizes, placements = plan.outputs[0].placements, at = call.index_of("generator")](
                 const Operator& op, torch::jit::Stack& stack, const Mesh& mesh) {
    LocalRegion region(stack[size_t(at)].toGenerator(), region_of(sizes, placements, mesh));
    op.handle.callBoxed(&stack);
  };
}

// redco::dropout(x, p, keeps_factors, generator) -> y, factors
std::optional<CallPlan> dropout(const Call& call) {
  std::optional<CallPlan> plan = multiply(call);
  if (!plan || !is_box(plan->outputs[0])) return std::nullopt;
  for (Placement& placement : plan->outputs[1].placements)
    if (placement.is_partial()) placement = {};  // all terms of a partial sum have the same factors
  draw_locally(call, *plan, {call.tensors[0].sizes().begin(), call.tensors[0].sizes().end()});
  return plan;
}

// Returns factors of tensors [..., n] like the first one, or broadcast to it. The last dimension
// stays whole.
Factors whole_rows(const Call& call, size_t n_outputs) {
  const at::IntArrayRef sizes = call.tensors[0].sizes();
  Factors factors;
  for (const TensorArgument& argument : call.tensors) {
    const at::IntArrayRef own = argument.sizes();
    Letters& letters_of = factors.inputs.emplace_back(own.size(), int8_t(-1));
    for (size_t dim = 0; dim < own.size(); ++dim) {
      const size_t as = dim + sizes.size() - own.size();
      if (own[dim] == sizes[as]) letters_of[dim] = int8_t(as);
    }
  }
  factors.outputs.assign(n_outputs, letters(int64_t(sizes.size())));
  factors.whole = uint64_t{1} << (sizes.size() - 1);
  return factors;
}

// redco::softmax_dropout(scores, mask, scale, p, generator) -> probs, dropped
std::optional<CallPlan> softmax_dropout(const Call& call) {
  CallPlan plan = plan_by_factors(call, whole_rows(call, 2));
  if (!is_box(plan.outputs[0])) return std::nullopt;
  draw_locally(call, plan, {call.tensors[0].sizes().begin(), call.tensors[0].sizes().end()});
  return plan;
}

std::optional<CallPlan> softmax_dropout_backward(const Call& call) {
  return plan_by_factors(call, whole_rows(call, 1));
}

std::optional<CallPlan> random(const Call& call) {
  Sizes sizes(call.tensors[0].sizes().begin(), call.tensors[0].sizes().end());
  std::optional<Factors> factors = pointwise_factors(call, sizes);
  if (!factors) return std::nullopt;
  CallPlan plan = plan_by_factors(call, *factors);
  if (!is_box(plan.outputs[0])) return std::nullopt;
  const c10::IValue* generator = generator_of(call);
  if (!generator || !counter_generator(generator->toGenerator()))
    return drawn_everywhere(call, std::move(plan), sizes);
  draw_locally(call, plan, sizes);
  return plan;
}

}  // namespace

const RuleTable& random_rules() {
  static const RuleTable table = [] {
    RuleTable table;
    for (const char* name :
         {"aten::bernoulli", "aten::uniform", "aten::normal", "aten::log_normal",
          "aten::exponential", "aten::cauchy", "aten::geometric", "aten::random"})
      table[name] = random;
    table["redco::dropout"] = dropout;
    table["redco::softmax_dropout"] = softmax_dropout;
    table["redco::softmax_dropout_backward"] = softmax_dropout_backward;
    return table;
  }();
  return table;
}

}  // namespace redco::sharding
