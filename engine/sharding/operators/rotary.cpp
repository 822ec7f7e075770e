// The rule for rotary positions. All dimensions may be split, except that of a head's elements.

#include "rules.h"

namespace redco::sharding {

namespace {

// redco::rotary(x, cos, sin, are_neighbours, is_inverse) -> y
std::optional<CallPlan> rotary(const Call& call) {
  at::IntArrayRef sizes = call.tensors[0].sizes();
  Factors factors;
  for (const TensorArgument& argument : call.tensors) {
    Letters& own = factors.inputs.emplace_back();
    for (size_t dim = 0; dim + 1 < sizes.size(); ++dim)
      own.push_back(argument.sizes()[dim] == sizes[dim] ? int8_t(dim) : int8_t(-1));
    own.push_back(-1);
  }
  factors.outputs = {factors.inputs[0]};
  if (!may_overflow(call.tensors[0].tensor.scalar_type())) factors.linear = {1};
  return plan_by_factors(call, factors);
}

}  // namespace

const RuleTable& rotary_rules() {
  static const RuleTable table = {{"redco::rotary", rotary}};
  return table;
}

}  // namespace redco::sharding
