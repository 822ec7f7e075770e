// Rules for operators that look up each element of a tensor in another tensor. The other tensor
// must not be split.

#include "rules.h"

#include <string_view>

namespace redco::sharding {

namespace {

// `elements` is the name of the argument that has the dimensions of the result.
Rule in_whole(std::string_view elements) {
  return [elements](const Call& call) -> std::optional<CallPlan> {
    int place = call.tensor_of(elements);
    if (place < 0 || call.find("out")) return std::nullopt;
    Letters own = letters(call.tensors[size_t(place)].tensor.dim());
    Factors factors;
    for (const TensorArgument& argument : call.tensors)
      factors.inputs.emplace_back(size_t(argument.tensor.dim()), int8_t(-1));
    factors.inputs[size_t(place)] = own;
    factors.outputs = {own};
    return plan_by_factors(call, factors);
  };
}

// All rows share a one-dimensional sequence; otherwise each row has its own sequence.
std::optional<CallPlan> searchsorted(const Call& call) {
  int sequence = call.tensor_of("sorted_sequence"), elements = call.tensor_of("self");
  if (elements < 0 || call.find("out")) return std::nullopt;
  if (call.tensors[size_t(sequence)].tensor.dim() == 1) return in_whole("self")(call);
  Letters own = letters(call.tensors[size_t(elements)].tensor.dim()), rows = own;
  rows.back() = -1;
  Factors factors;
  factors.inputs.assign(call.tensors.size(), rows);  // the sequence and its sorter
  factors.inputs[size_t(elements)] = own;
  factors.outputs = {own};
  return plan_by_factors(call, factors);
}

}  // namespace

const RuleTable& searching_rules() {
  static const RuleTable table = {
      {"aten::bucketize", in_whole("self")},
      {"aten::isin", in_whole("elements")},
      {"aten::take", in_whole("index")},
      {"aten::searchsorted", searchsorted},
  };
  return table;
}

}  // namespace redco::sharding
