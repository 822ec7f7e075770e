// Rules for elementwise operators with broadcasting.

#include "rules.h"

#include <redco/detail/recomputing.h>

#include <ATen/native/TypeProperties.h>
#include <ATen/ops/constant_pad_nd.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <set>
#include <string>

namespace redco::sharding {

namespace {

uint64_t bit(int i) { return i < 0 ? 0 : uint64_t{1} << i; }

// The sets of arguments of each operator that may be partial together: the reduction is deferred.
const std::unordered_map<std::string_view, std::vector<std::vector<std::string_view>>>
    linear_arguments = {
        {"aten::add.Tensor", {{"self", "other"}}},
        {"aten::add.out", {{"self", "other", "out"}}},
        {"aten::add_.Tensor", {{"self", "other"}}},
        {"aten::sub.Tensor", {{"self", "other"}}},
        {"aten::sub_.Tensor", {{"self", "other"}}},
        {"aten::mul.Tensor", {{"self"}, {"other"}}},
        {"aten::mul_.Tensor", {{"self"}}},
        {"aten::mul.Scalar", {{"self"}}},
        {"aten::mul_.Scalar", {{"self"}}},
        {"aten::div.Tensor", {{"self"}}},
        {"aten::div_.Tensor", {{"self"}}},
        {"aten::div.Scalar", {{"self"}}},
        {"aten::div_.Scalar", {{"self"}}},
        {"aten::neg", {{"self"}}},
        {"aten::neg_", {{"self"}}},
        {"aten::clone", {{"self"}}},
        {"aten::_to_copy", {{"self"}}},
        {"aten::copy_", {{"self", "src"}}},
        {"aten::_foreach_add.List", {{"self", "other"}}},
        {"aten::_foreach_add_.List", {{"self", "other"}}},
        {"aten::_foreach_sub.List", {{"self", "other"}}},
        {"aten::_foreach_sub_.List", {{"self", "other"}}},
        {"aten::_foreach_mul.Scalar", {{"self"}}},
        {"aten::_foreach_mul.ScalarList", {{"self"}}},
        {"aten::_foreach_mul.Tensor", {{"self"}}},
        {"aten::_foreach_mul_.Scalar", {{"self"}}},
        {"aten::_foreach_mul_.ScalarList", {{"self"}}},
        {"aten::_foreach_mul_.Tensor", {{"self"}}},
        {"aten::_foreach_div.Scalar", {{"self"}}},
        {"aten::_foreach_div.ScalarList", {{"self"}}},
        {"aten::_foreach_div.Tensor", {{"self"}}},
        {"aten::_foreach_div_.Scalar", {{"self"}}},
        {"aten::_foreach_div_.ScalarList", {{"self"}}},
        {"aten::_foreach_div_.Tensor", {{"self"}}},
        {"aten::_foreach_neg", {{"self"}}},
        {"aten::_foreach_neg_", {{"self"}}},
        {"redco::dropout", {{"x"}}},
        {"aten::_foreach_lerp.Scalar", {{"self", "tensors1"}}},
        {"aten::_foreach_lerp.ScalarList", {{"self", "tensors1"}}},
        {"aten::_foreach_lerp_.Scalar", {{"self", "tensors1"}}},
        {"aten::_foreach_lerp_.ScalarList", {{"self", "tensors1"}}},
        {"aten::_foreach_copy_", {{"self", "src"}}},
};

// Elementwise operators that LibTorch does not tag as such, or not in all variants.
constexpr const char* untagged[] = {
    "aten::_to_copy",
    "aten::copy",
    "aten::clone",
    "aten::_prelu_kernel",
    "aten::_prelu_kernel_backward",
    "aten::abs",
    "aten::celu",
    "aten::complex",
    "aten::copysign",
    "aten::elu",
    "aten::elu_backward",
    "aten::eq",
    "aten::floor_divide",
    "aten::gcd",
    "aten::ge",
    "aten::gelu",
    "aten::gelu_backward",
    "aten::gt",
    "aten::hardshrink_backward",
    "aten::hardsigmoid",
    "aten::hardsigmoid_backward",
    "aten::hardswish",
    "aten::hardswish_backward",
    "aten::hardtanh",
    "aten::hardtanh_backward",
    "aten::heaviside",
    "aten::lcm",
    "aten::le",
    "aten::leaky_relu",
    "aten::leaky_relu_backward",
    "aten::log_sigmoid_backward",
    "aten::log_sigmoid_forward",
    "aten::lt",
    "aten::masked_fill",
    "aten::mish",
    "aten::ne",
    "aten::polar",
    "aten::rsub",
    "aten::softplus_backward",
    "aten::softshrink_backward",
    "aten::threshold",
    "aten::threshold_backward",
    "aten::xlogy",
};

// The result has the shape of the first argument, but does not depend on its values.
const std::set<std::string_view> of_shape_alone = {"aten::empty_like", "aten::zeros_like",
                                                   "aten::ones_like",  "aten::full_like",
                                                   "aten::zero",       "aten::fill"};

// These operators change at most the sign of terms.
const std::set<std::string_view> keeps_size = {
    "aten::clone",       "aten::_to_copy",      "aten::copy",        "aten::neg",
    "aten::masked_fill", "aten::_foreach_copy", "aten::_foreach_neg"};

at::ScalarType result_type(const Call& call) {
  if (const c10::IValue* dtype = call.find("dtype"); dtype && dtype->isInt())
    return at::ScalarType(dtype->toInt());
  at::native::ResultTypeState state = {};
  for (const TensorArgument& argument : call.tensors) {
    if (argument.is_written) return argument.tensor.scalar_type();
    state = at::native::update_result_type_state(argument.tensor, state);
  }
  return at::native::result_type(state);
}

// Whether partial arguments may stay partial: conversion to the result type must keep their sum,
// and computing on the terms must not overflow.
bool terms_take_part(const Call& call, uint64_t set) {
  at::ScalarType to = result_type(call);
  bool is_kept = keeps_size.contains(call.op.name);
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    if (!(set >> i & 1) || !is_sum(call.tensors[i])) continue;
    at::ScalarType from = call.tensors[i].tensor.scalar_type();
    if (!adds_up_in(from, to)) return false;
    if (!is_kept && (at::isIntegralType(from, /*includeBool=*/true) || may_overflow(from)))
      return false;
  }
  return true;
}

std::vector<uint64_t> linear_sets(const Call& call) {
  const c10::FunctionSchema& schema = call.op.schema();
  std::string name = schema.name();
  if (!schema.overload_name().empty()) name += "." + schema.overload_name();
  std::vector<uint64_t> sets;
  if (auto found = linear_arguments.find(name); found != linear_arguments.end()) {
    for (const auto& names : found->second) {
      uint64_t set = 0;
      for (std::string_view argument : names) set |= bit(call.tensor_of(argument));
      sets.push_back(set);
    }
  }
  // The backward of masked_fill fills with zero, for any value.
  if (call.op.name == "aten::masked_fill") {
    const c10::IValue* value = call.find("value");
    if (value && value->isScalar() && value->toScalar().equal(0))
      sets.push_back(bit(call.tensor_of("self")));
  }
  std::erase_if(sets, [&](uint64_t set) { return !terms_take_part(call, set); });
  return sets;
}

Sizes broadcast_sizes(const Call& call) {
  Sizes sizes;
  for (const TensorArgument& argument : call.tensors) {
    at::IntArrayRef own = argument.sizes();
    if (own.size() > sizes.size()) sizes.insert(sizes.begin(), own.size() - sizes.size(), 1);
    for (size_t i = 0; i < own.size(); ++i) {
      int64_t& size = sizes[sizes.size() - own.size() + i];
      if (own[i] != 1) size = own[i];
    }
  }
  return sizes;
}

std::optional<CallPlan> pointwise(const Call& call) {
  std::optional<Factors> factors = pointwise_factors(call, broadcast_sizes(call));
  if (!factors) return std::nullopt;
  factors->linear = linear_sets(call);
  return plan_by_factors(call, *factors);
}

// Whether autograd makes this call to add up the terms of a gradient.
bool adds_gradients(const Call& call) {
  return call.mesh->sequence_parallel() && torch::autograd::get_current_node() &&
         !Recomputing::is_on();
}

bool is_part_of_sequence(const TensorArgument& argument) {
  return argument.placements[Mesh::mp] == Placement::shard(1);
}

// Under sequence parallelism the gradient of a residual is split along the sequence. If it is added
// to partial sums, makes it one more term, so that all terms are reduced together.
std::optional<CallPlan> add(const Call& call) {
  if (!adds_gradients(call) || call.tensors.size() != 2) return pointwise(call);
  const size_t place = is_part_of_sequence(call.tensors[0]) ? 0 : 1;
  const TensorArgument &part = call.tensors[place], &terms = call.tensors[1 - place];
  if (part.is_written || terms.is_written || part.sizes() != terms.sizes() ||
      part.tensor.scalar_type() != terms.tensor.scalar_type() || !is_part_of_sequence(part) ||
      !is_split_along_sequence(terms.sizes(), terms.placements, *call.mesh))
    return pointwise(call);
  Call summed = call;
  summed.tensors[place].placements[Mesh::mp] = terms.placements[Mesh::mp];
  std::optional<CallPlan> plan = pointwise(summed);
  Placements& wanted = plan->inputs[place];
  if (!wanted[Mesh::mp].is_partial()) return pointwise(call);
  wanted[Mesh::mp] = Placement::shard(1);
  if (splitting(wanted, 1).size() > 1) return pointwise(call);  // parts of parts
  plan->run = [=, argument = part.argument, n = part.sizes()[1]](
                  const Operator& op, torch::jit::Stack& stack, const Mesh& mesh) {
    const Span own = span_of(n, 1, mesh.size(Mesh::mp), mesh.coordinate(Mesh::mp));
    const at::Tensor part = stack[argument].toTensor();
    stack[argument] = at::constant_pad_nd(part, {0, 0, own.begin, n - own.end});
    op.handle.callBoxed(&stack);
  };
  return plan;
}

// A partial sum that is converted to a wider type, such as bfloat16 terms to a float32 gradient,
// stays partial: the trainer reduces it. But over the ranks of one model it is reduced before, at
// half the bytes: it is an activation there, and its products need the sum anyway.
std::optional<CallPlan> converted(const Call& call) {
  Call summed = call;
  TensorArgument& self = summed.tensors[0];
  if (int64_t(c10::elementSize(result_type(call))) > self.tensor.element_size())
    for (Mesh::Dim dim : Mesh::dims_of(Mesh::model))
      if (self.placements[dim].is_partial()) self.placements[dim] = Placement::replicate();
  return pointwise(summed);
}

std::optional<CallPlan> shape_alone(const Call& call) {
  std::optional<Factors> factors = pointwise_factors(call, call.tensors[0].sizes());
  if (!factors) return std::nullopt;
  CallPlan plan = plan_by_factors(call, *factors);
  const TensorArgument& argument = call.tensors[0];
  for (Mesh::Dim dim : Mesh::dims) {
    // The values of a partial argument are not read, so it stays partial. A written argument
    // becomes replicated.
    if (!argument.placements[dim].is_partial() || argument.is_written) continue;
    plan.inputs[0][dim] = argument.placements[dim];
  }
  return plan;
}

}  // namespace

// Under sequence parallelism a partial gradient is reduce-scattered at its first product, so that
// all derivatives of a norm composed of single operators reuse it.
std::optional<CallPlan> multiply(const Call& call) {
  Call split = call;
  for (TensorArgument& argument : split.tensors)
    if (!argument.is_written &&
        is_split_along_sequence(argument.sizes(), argument.placements, *call.mesh))
      argument.placements[Mesh::mp] = Placement::shard(1);
  return pointwise(split);
}

std::optional<Factors> pointwise_factors(const Call& call, at::IntArrayRef sizes) {
  Factors factors;
  for (const TensorArgument& argument : call.tensors) {
    at::IntArrayRef own = argument.sizes();
    if (own.size() > sizes.size()) return std::nullopt;
    size_t shift = sizes.size() - own.size();
    Letters& letters = factors.inputs.emplace_back();
    for (size_t i = 0; i < own.size(); ++i) {
      if (own[i] != sizes[shift + i] && own[i] != 1) return std::nullopt;
      letters.push_back(own[i] == sizes[shift + i] ? int8_t(shift + i) : int8_t(-1));
    }
  }
  for (size_t i = 0; i < call.op.returned.size(); ++i)
    factors.outputs.push_back(letters(int64_t(sizes.size())));
  return factors;
}

bool is_pointwise(const Operator& op) {
  return op.handle.hasTag(at::Tag::pointwise) || pointwise_rules().contains(op.name);
}

const RuleTable& pointwise_rules() {
  static const RuleTable table = [] {
    RuleTable table;
    table[""] = pointwise;  // for all operators that LibTorch tags
    for (const char* name : untagged) table[name] = pointwise;
    table["aten::mul"] = multiply;
    table["aten::add"] = add;
    table["aten::add"].remembers = [](const Call& call) {
      return adds_gradients(call) ? std::vector<int64_t>{1} : std::vector<int64_t>();
    };
    table["aten::_to_copy"] = converted;
    for (std::string_view name : of_shape_alone) table[name] = shape_alone;
    for (const char* name : {"aten::_to_copy", "aten::clone"}) table[name].passes_through = true;
    table["aten::clone"].gpu = {.passes = 2};
    table["aten::masked_fill"].keys_floats = true;  // whether it fills with zero
    return table;
  }();
  return table;
}

}  // namespace redco::sharding
