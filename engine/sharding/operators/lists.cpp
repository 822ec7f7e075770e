// Rules for operators on lists of tensors, as used by optimizers.

#include "../../kernels/adamw8bit.h"
#include "rules.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <utility>
#include <vector>

namespace redco::sharding {

using namespace kernels;

namespace {

// The tensors at one index of all lists, as a call of their own, and their indices in the call.
using ForElement = std::function<void(const Call& element, const std::vector<size_t>& places)>;

void for_each_element(const Call& call, const ForElement& body) {
  std::vector<std::vector<size_t>> places;
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    const int64_t element = call.tensors[i].element;
    if (element < 0) continue;
    if (element >= int64_t(places.size())) places.resize(size_t(element) + 1);
    places[size_t(element)].push_back(i);
  }
  Call own = call;
  for (const std::vector<size_t>& of_element : places) {
    own.tensors.clear();
    for (size_t i : of_element) own.tensors.push_back(call.tensors[i]);
    body(own, of_element);
  }
}

// Plans each element as a separate call. Tensors outside of lists are scalars and replicated.
std::optional<CallPlan> element_by_element(const Call& call) {
  const Rule& rule = pointwise_rules().at("").rule;
  size_t n_results = call.op.returned.size();
  std::vector<std::vector<OutputPlan>> results(n_results);
  CallPlan plan;
  plan.inputs.resize(call.tensors.size());
  bool is_planned = true;
  for_each_element(call, [&](const Call& element, const std::vector<size_t>& places) {
    std::optional<CallPlan> own = is_planned ? rule(element) : std::nullopt;
    if (!own) {
      is_planned = false;
      return;
    }
    for (size_t i = 0; i < places.size(); ++i) plan.inputs[places[i]] = own->inputs[i];
    for (size_t i = 0; i < n_results; ++i) results[i].push_back(own->outputs[i]);
  });
  if (!is_planned) return std::nullopt;
  for (const auto& list : results)
    plan.outputs.insert(plan.outputs.end(), list.begin(), list.end());
  return plan;
}

// Zeros are a partial sum too, so nothing is reduced.
std::optional<CallPlan> zeroed(const Call& call) {
  CallPlan plan;
  for (const TensorArgument& tensor : call.tensors) {
    plan.inputs.push_back(tensor.placements);
    for (Placement& placement : plan.inputs.back())
      if (placement.is_partial() && placement.op != ReduceOp::sum) return std::nullopt;
    plan.outputs.push_back({tensor.placements, Sizes(tensor.sizes()), std::nullopt});
  }
  return plan;
}

// Gives all tensors of a parameter the parameter's strides, because the fused kernels ignore
// strides.
void run_with_equal_strides(const Operator& op, torch::jit::Stack& stack, const Mesh&) {
  std::vector<at::Tensor> first = stack[0].toTensorVector();
  for (at::Tensor& parameter : first)
    if (!parameter.is_non_overlapping_and_dense()) parameter = parameter.contiguous();
  std::vector<std::pair<at::Tensor, at::Tensor>> written;  // destination, source
  for (size_t i = 0; i < stack.size(); ++i) {
    if (!stack[i].isTensorList()) continue;
    std::vector<at::Tensor> list = stack[i].toTensorVector();
    for (size_t j = 0; j < list.size(); ++j) {
      if (list[j].sizes() != first[j].sizes()) continue;
      at::Tensor alike = at::empty_like(first[j], list[j].options());
      if (alike.strides() == list[j].strides()) continue;
      alike.copy_(list[j]);
      if (op.is_written[i]) written.emplace_back(list[j], alike);
      list[j] = alike;
    }
    stack[i] = list;
  }
  op.handle.callBoxed(&stack);
  for (auto& [to, from] : written) to.copy_(from);
}

// An optimizer step: all tensors of a parameter get the parameter's placement.
std::optional<CallPlan> like_parameters(const Call& call) {
  if (!call.op.returned.empty()) return std::nullopt;
  CallPlan plan;
  plan.inputs.resize(call.tensors.size());
  plan.run = run_with_equal_strides;
  for_each_element(call, [&](const Call& element, const std::vector<size_t>& places) {
    const TensorArgument& parameter = element.tensors[0];
    for (size_t i = 0; i < places.size(); ++i) {
      if (element.tensors[i].sizes() != parameter.sizes()) continue;  // a step count
      Placements& target = plan.inputs[places[i]] = parameter.placements;
      for (Placement& placement : target)
        if (placement.is_partial()) placement = {};
    }
  });
  return plan;
}

// Returns the indices of a dimension that this process holds.
at::Tensor own_indices(int64_t size, int64_t dim, const Placements& placements, const Mesh& mesh) {
  Placements own;
  for (Mesh::Dim mesh_dim : splitting(placements, dim)) {
    own[mesh_dim] = placements[mesh_dim];
    own[mesh_dim].dim = 0;
  }
  return redistribute_local(at::arange(size), {size}, {1}, {}, own, mesh);
}

// Like like_parameters. The scales stay whole on every process, because a block may span several
// processes.
std::optional<CallPlan> adamw8bit(const Call& call) {
  enum : size_t { params, grads, exp_avgs, exp_avg_sqs, absmaxs, step };
  CallPlan plan;
  plan.inputs.resize(call.tensors.size());
  std::vector<Adamw8bitParam> parts;
  std::set<Mesh::Dim> split;
  for_each_element(call, [&](const Call& element, const std::vector<size_t>& places) {
    Placements target = element.tensors[params].placements;
    at::IntArrayRef sizes = element.tensors[params].sizes();
    for (Mesh::Dim dim : Mesh::dims) {
      if (target[dim].is_partial()) target[dim] = {};
      if (target[dim].is_sharded()) split.insert(dim);
    }
    for (size_t i = params; i < absmaxs; ++i) plan.inputs[places[i]] = target;
    parts.emplace_back().sizes = sizes.vec();
    for (size_t dim = 0; dim < sizes.size(); ++dim)
      parts.back().indices.push_back(own_indices(sizes[dim], int64_t(dim), target, *call.mesh));
  });
  plan.run = [parts, split](const Operator&, torch::jit::Stack& stack, const Mesh& mesh) {
    std::vector<Adamw8bitParam> own = parts;
    auto list = [&](size_t i) { return stack[i].toTensorList(); };
    const auto param = list(params), grad = list(grads), exp_avg = list(exp_avgs);
    const auto exp_avg_sq = list(exp_avg_sqs), absmax = list(absmaxs);
    for (size_t i = 0; i < own.size(); ++i) {
      own[i].param = param[i];
      own[i].grad = grad[i];
      own[i].exp_avg = exp_avg[i];
      own[i].exp_avg_sq = exp_avg_sq[i];
      own[i].absmax = absmax[i];
    }
    auto option = [&](size_t i) { return stack[step + i].toDouble(); };
    adamw8bit_step(std::move(own),
                   {stack[step].toTensor(), option(1), option(2), option(3), option(4), option(5)},
                   [&](at::Tensor& absmax) {
                     for (Mesh::Dim dim : split) mesh.group(dim).all_reduce(absmax, ReduceOp::max);
                   });
    stack.clear();
  };
  return plan;
}

// --- Operators that return one number for each tensor --------------------------------------------

// The placements that keep each tensor split, and which mesh dimensions split which tensors.
struct Parts {
  CallPlan plan;
  std::array<std::vector<bool>, Mesh::n_dims> is_split;  // by mesh dimension, then by tensor
};

Parts kept_parts(const Call& call) {
  Parts parts;
  for (const TensorArgument& tensor : call.tensors) {
    Placements& kept = parts.plan.inputs.emplace_back(tensor.placements);
    for (Mesh::Dim dim : Mesh::dims) {
      if (kept[dim].is_partial()) kept[dim] = {};
      parts.is_split[dim].push_back(tensor.element >= 0 && kept[dim].is_sharded());
    }
  }
  return parts;
}

bool any(const std::vector<bool>& flags) {
  return std::find(flags.begin(), flags.end(), true) != flags.end();
}

// Describes how to reduce the numbers of a tensor's parts. `into` converts them to a form that `op`
// reduces, and `out_of` converts back. `neutral` is the identity of the reduction.
struct Reduced {
  ReduceOp op;
  double neutral;
  std::function<at::Tensor(at::Tensor)> into, out_of;
};

// Reduces all numbers in one collective per mesh dimension that splits any of the tensors.
void reduce_numbers(std::vector<at::Tensor>& numbers, const Parts& parts, const Reduced& how,
                    const Mesh& mesh) {
  at::Tensor together = how.into(at::stack(numbers));
  for (Mesh::Dim dim : Mesh::dims) {
    if (!any(parts.is_split[dim])) continue;
    Group& group = mesh.group(dim);
    // Count replicated tensors once.
    if (group.rank() > 0)
      for (size_t i = 0; i < numbers.size(); ++i)
        if (!parts.is_split[dim][i]) together[int64_t(i)].fill_(how.neutral);
    group.all_reduce(together, how.op);
  }
  numbers = how.out_of(together).unbind();
}

std::optional<CallPlan> number_of_each(const Call& call, const Reduced& how, double of_nothing) {
  for (const TensorArgument& tensor : call.tensors)
    if (tensor.element < 0 || tensor.is_written || tensor.tensor.numel() == 0) return std::nullopt;
  Parts parts = kept_parts(call);
  CallPlan plan = parts.plan;
  if (std::ranges::none_of(parts.is_split, any)) return plan;
  // One process rounds the number of a 16-bit tensor once, so this plan rounds only after the
  // reduction.
  plan.run = [parts = std::move(parts), how, of_nothing, dtype = call.index_of("dtype")](
                 const Operator& op, torch::jit::Stack& stack, const Mesh& mesh) {
    std::vector<at::Tensor> tensors = stack[0].toTensorVector();
    std::vector<at::ScalarType> types;
    for (at::Tensor& tensor : tensors) {
      at::ScalarType type = tensor.scalar_type();
      if (dtype >= 0 && !stack[size_t(dtype)].isNone()) type = stack[size_t(dtype)].toScalarType();
      types.push_back(c10::toRealValueType(type));
      if (is_narrow(type)) tensor = widened(tensor.to(type));
      if (tensor.numel() == 0) tensor = at::full({1}, of_nothing, tensor.options());
    }
    if (dtype >= 0 && is_narrow(types[0])) stack[size_t(dtype)] = c10::IValue();
    stack[0] = tensors;
    op.handle.callBoxed(&stack);
    std::vector<at::Tensor> numbers = stack[0].toTensorVector();
    reduce_numbers(numbers, parts, how, mesh);
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = numbers[i].to(types[i]);
    stack = {numbers};
  };
  return plan;
}

constexpr double infinity = std::numeric_limits<double>::infinity();

at::Tensor as_is(at::Tensor numbers) { return numbers; }

double order_of(const Call& call) {
  const c10::IValue* order = call.find("ord");
  return order ? order->toScalar().toDouble() : 2;
}

std::optional<CallPlan> norm(const Call& call) {
  double p = order_of(call);
  if (p == infinity) return number_of_each(call, {ReduceOp::max, 0, as_is, as_is}, 0);
  if (p == -infinity)
    return number_of_each(call, {ReduceOp::min, infinity, as_is, as_is}, infinity);
  if (p == 0) return number_of_each(call, {ReduceOp::sum, 0, as_is, as_is}, 0);
  Reduced sum_of_powers{ReduceOp::sum, 0, [p](at::Tensor norms) { return norms.pow(p); },
                        [p](at::Tensor sums) { return sums.pow(1 / p); }};
  return number_of_each(call, sum_of_powers, p > 0 ? 0 : infinity);
}

std::optional<CallPlan> sum_of_powers(const Call& call) {
  return number_of_each(call, {ReduceOp::sum, 0, as_is, as_is}, order_of(call) < 0 ? infinity : 0);
}

std::optional<CallPlan> maximum(const Call& call) {
  for (const TensorArgument& tensor : call.tensors)
    if (!tensor.tensor.is_floating_point()) return std::nullopt;
  return number_of_each(call, {ReduceOp::max, -infinity, as_is, as_is}, -infinity);
}

// All-reduces the flag, so that every process sees an overflow in any part.
std::optional<CallPlan> unscale(const Call& call) {
  if (!call.op.returned.empty()) return std::nullopt;
  Parts parts = kept_parts(call);
  CallPlan plan = parts.plan;
  auto found = size_t(call.index_of("found_inf"));
  std::vector<Mesh::Dim> split;
  for (Mesh::Dim dim : Mesh::dims)
    if (any(parts.is_split[dim])) split.push_back(dim);
  plan.run = [split, found](const Operator& op, torch::jit::Stack& stack, const Mesh& mesh) {
    at::Tensor found_inf = stack[found].toTensor();
    op.handle.callBoxed(&stack);
    for (Mesh::Dim dim : split) mesh.group(dim).all_reduce(found_inf, ReduceOp::max);
  };
  for (size_t i = 0; i < call.tensors.size(); ++i)
    if (call.tensors[i].element < 0) plan.inputs[i] = {};
  return plan;
}

}  // namespace

bool is_of_lists(const Operator& op) {
  return op.name.starts_with("aten::_foreach_") || list_rules().contains(op.name);
}

const RuleTable& list_rules() {
  static const RuleTable table = [] {
    RuleTable table = {
        {"aten::_foreach_", element_by_element},  // for operators without a line below
        {"aten::_foreach_zero", zeroed},
        {"aten::_foreach_norm", norm},
        {"aten::_foreach_powsum", sum_of_powers},
        {"aten::_foreach_max", maximum},
        {"aten::_fused_adam", like_parameters},
        {"aten::_fused_adamw", like_parameters},
        {"aten::_fused_sgd", like_parameters},
        {"aten::_fused_adagrad", like_parameters},
        {"redco::adamw8bit", adamw8bit},
        {"aten::_amp_foreach_non_finite_check_and_unscale", unscale},
    };
    table["aten::_foreach_norm"].keys_floats = true;
    // An optimizer unscales the gradients in place, and no operator reads them afterwards.
    for (const char* name : {"aten::_fused_adam", "aten::_fused_adamw", "aten::_fused_sgd"})
      table[name].scratch = "grads";
    return table;
  }();
  return table;
}

}  // namespace redco::sharding
