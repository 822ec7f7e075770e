// The plan cache: its key is everything that a plan depends on.

#include "../operators/rules.h"
#include "logical_results.h"
#include "results.h"

#include <redco/error.h>
#include <redco/random.h>

#include <ATen/record_function.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string_view>
#include <unordered_map>

namespace redco::sharding {

namespace {

using Key = c10::SmallVector<int64_t, 64>;

struct KeyHash {
  size_t operator()(const Key& key) const {
    uint64_t hash = key.size();
    for (int64_t word : key) {
      hash = (hash ^ uint64_t(word)) * 0x9E3779B97F4A7C15;
      hash ^= hash >> 29;
    }
    return size_t(hash);
  }
};

void append(Key& key, const Placement& placement) {
  key.push_back(int64_t(placement.kind) | int64_t(placement.op) << 2 |
                int64_t(placement.lengths != nullptr) << 4 | int64_t(placement.dim) << 5 |
                int64_t(placement.rank + 1) << 32);
  if (placement.is_sharded())
    key.push_back(int64_t(placement.block) | int64_t(placement.grain) << 32);
  if (placement.lengths) key.push_back(std::bit_cast<int64_t>(placement.lengths));
}

void append(Key& key, double number) {
  int64_t bits;
  std::memcpy(&bits, &number, sizeof bits);
  key.push_back(bits);
}

void append(Key& key, const c10::IValue& value) {
  if (value.isInt()) {
    key.push_back(value.toInt());
  } else if (value.isBool()) {
    key.push_back(value.toBool());
  } else if (value.isNone()) {
    key.push_back(INT64_MIN);
  } else if (value.isDouble()) {
    append(key, value.toDouble());
  } else if (value.isIntList()) {
    auto list = value.toIntVector();
    key.push_back(int64_t(list.size()));
    key.append(list.begin(), list.end());
  } else if (value.isBoolList()) {
    auto list = value.toBoolList();
    key.push_back(int64_t(list.size()));
    for (size_t i = 0; i < list.size(); ++i) key.push_back(list.get(i));
  } else if (value.isString()) {
    key.push_back(int64_t(std::hash<std::string>()(value.toStringRef())));
  } else if (value.isGenerator()) {
    key.push_back(counter_generator(value.toGenerator()) ? 2 : 1);
  } else if (value.isComplexDouble()) {
    append(key, value.toComplexDouble().real());
    append(key, value.toComplexDouble().imag());
  } else if (value.isDoubleList()) {
    auto list = value.toDoubleVector();
    key.push_back(int64_t(list.size()));
    for (double number : list) append(key, number);
  } else if (value.isList()) {
    const auto list = value.toList();
    key.push_back(int64_t(list.size()));
    for (size_t i = 0; i < list.size(); ++i) append(key, list.get(i));
  } else if (!value.isTensor()) {  // tensors are part of the key separately
    fail("a plan cannot be kept for an argument of type ", value.tagKind(), ". Please report this");
  }
}

Key key_of(const Call& call) {
  Key key;
  key.push_back(reinterpret_cast<int64_t>(&call.op));
  key.push_back(call.mesh->sequence_parallel());
  for (Mesh::Dim dim : Mesh::dims)
    key.push_back(call.mesh->size(dim) << 32 | call.mesh->coordinate(dim));
  for (const TensorArgument& argument : call.tensors) {
    at::IntArrayRef sizes = argument.sizes();
    key.push_back(int64_t(argument.argument) | int64_t(sizes.size()) << 16 |
                  int64_t(argument.tensor.scalar_type()) << 32 |
                  int64_t(argument.impl != nullptr) << 48);
    key.push_back(argument.element);
    key.push_back(argument.first);
    key.append(sizes.begin(), sizes.end());
    key.append(argument.tensor.strides().begin(), argument.tensor.strides().end());
    if (argument.impl)
      for (const Placement& placement : argument.placements) append(key, placement);
    // Other operators do not read the offset, which changes from call to call.
    if (call.op.is_view || call.op.is_inplace_view) key.push_back(argument.tensor.storage_offset());
  }
  for (size_t i = 0; i < call.arguments.size(); ++i)
    if (call.op.is_keyed[i] && !call.arguments[i].isTensor() && !call.arguments[i].isTensorList())
      append(key, call.arguments[i]);
  if (call.op.facts.remembers)
    for (int64_t word : call.op.facts.remembers(call)) key.push_back(word);
  return key;
}

// Whether the written arguments have the sizes of the results. Otherwise they will be resized.
bool fits_results(const Call& call, const CallPlan& plan) {
  for (size_t i = 0; i < call.op.returned.size() && i < plan.outputs.size(); ++i) {
    for (const TensorArgument& argument : call.tensors) {
      if (int(argument.argument) != call.op.returned[i] || argument.element >= 0) continue;
      const Sizes& sizes = plan.outputs[i].sizes;
      for (size_t dim = 0; dim < sizes.size(); ++dim)
        if (sizes.size() != argument.sizes().size() ||
            (sizes[dim] >= 0 && sizes[dim] != argument.sizes()[dim]))
          return false;
    }
  }
  return true;
}

// Gives the results the geometries that they have on one process. Replicated results need this too:
// a redistributed argument may have other strides in dimensions of one element.
void set_geometries(const Call& call, CallPlan& plan) {
  std::vector<std::optional<Geometry>> results = logical_results(call);
  if (plan.outputs.size() < results.size()) plan.outputs.resize(results.size());
  for (size_t i = 0; i < results.size(); ++i)
    if (!plan.outputs[i].geometry) plan.outputs[i].geometry = results[i];
  bool is_thin = false;
  for (size_t i = 0; i < call.tensors.size(); ++i)
    is_thin |= has_thin_parts(call.tensors[i].sizes(), plan.inputs[i], *call.mesh);
  if (!is_thin) return;
  for (OutputPlan& output : plan.outputs)
    if (!output.geometry) output.first = contiguous_geometry(call.tensors[0].sizes());
}

// With REDCO_CHECK_PLANS=1, cached plans are remade and compared.
bool are_checked() {
  static const bool is_set = [] {
    const char* value = std::getenv("REDCO_CHECK_PLANS");
    return value && std::string_view(value) == "1";
  }();
  return is_set;
}

void check_arguments_read(const Call& call) {
  for (size_t i = 0; i < call.arguments.size(); ++i)
    require(call.op.is_keyed[i] || !(call.read >> i & 1), call.op.name, ": its plan depends on \"",
            call.op.schema().arguments()[i].name(),
            "\", which is not kept with it. Please report this");
}

// Whether a rule keeps a split dimension as it is, wherever the parts of the ranks begin.
bool keeps_parts(const Call& call) {
  const OperatorFacts& facts = call.op.facts;
  return is_pointwise(call.op) || facts.is_product || (facts.rule && dimension_order(call)) ||
         reduction_rules().contains(call.op.name) || is_of_lists(call.op);
}

// Returns the call as if tensors that one rank holds were whole on all ranks, for other rules.
Call without_owners(Call call) {
  for (TensorArgument& argument : call.tensors)
    for (Placement& placement : argument.placements)
      if (placement.is_on_rank()) placement = {};
  return call;
}

bool has_owner(const Call& call) {
  return std::ranges::any_of(call.tensors, [](const TensorArgument& argument) {
    return std::ranges::any_of(argument.placements, &Placement::is_on_rank);
  });
}

CallPlan make_plan(const Call& call) {
  if (has_owner(call) && !keeps_parts(call)) return make_plan(without_owners(call));
  ++sharding_counters().plans_made;
  at::RecordFunctionGuard not_counted(/*is_enabled=*/false);  // operators that find shapes
  bool is_whole = std::all_of(
      call.tensors.begin(), call.tensors.end(),
      [](const TensorArgument& argument) { return is_replicated(argument.placements); });
  std::optional<CallPlan> plan;
  if (call.op.facts.rule && (!is_whole || takes_strides(call.op))) plan = call.op.facts.rule(call);
  if (plan && !call.op.is_inplace_view && !fits_results(call, *plan)) plan.reset();
  if (!plan) plan = gathered_plan(call);
  if (are_checked()) check_arguments_read(call);
  set_geometries(call, *plan);
  return *std::move(plan);
}

std::string text_of(const CallPlan& plan) {
  std::ostringstream text;
  for (const Placements& input : plan.inputs) text << " takes " << to_string(input);
  for (const OutputPlan& output : plan.outputs) {
    text << " gives " << to_string(output.placements) << at::IntArrayRef(output.sizes);
    if (output.geometry)
      text << at::IntArrayRef(output.geometry->sizes) << at::IntArrayRef(output.geometry->strides)
           << output.geometry->offset;
  }
  for (const auto& [index, value] : plan.arguments) text << " argument " << index << ": " << value;
  text << (plan.is_gathered ? " gathered" : "") << (plan.run ? " run by " : "")
       << (plan.run ? plan.run.target_type().name() : "");
  return text.str();
}

void check(const Call& call, const CallPlan& kept) {
  std::string was = text_of(kept), is = text_of(make_plan(call));
  --sharding_counters().plans_made;
  require(was == is, call.op.name, ": the plan kept for this call is not the one made for it:", was,
          " instead of", is, ". Please report this");
}

}  // namespace

const CallPlan& plan_for(const Call& call) {
  struct Kept {
    CallPlan plan;
    uint64_t n_found = 0;
  };
  // Bounds the memory if shapes never repeat.
  constexpr size_t most_plans = 1 << 15;
  thread_local std::unordered_map<Key, Kept, KeyHash> plans;
  Key key = key_of(call);
  auto found = plans.find(key);
  if (found == plans.end()) {
    CallPlan plan = make_plan(call);
    if (plans.size() >= most_plans) plans.clear();
    found = plans.emplace(std::move(key), Kept{std::move(plan)}).first;
  } else {
    ++sharding_counters().plans_found;
    // At powers of two only: making a plan takes much longer than a cache hit.
    bool is_due = std::has_single_bit(++found->second.n_found);
    if (is_due && are_checked()) check(call, found->second.plan);
  }
  return found->second.plan;
}

}  // namespace redco::sharding
