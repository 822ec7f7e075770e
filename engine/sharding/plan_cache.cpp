// Plans, kept by all that they depend on.

#include "plan.h"

#include <redco/random.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>

namespace redco {

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
  key.push_back(int64_t(placement.kind) | int64_t(placement.op) << 2 | int64_t(placement.dim) << 4);
  if (placement.is_sharded())
    key.push_back(int64_t(placement.block) | int64_t(placement.grain) << 32);
}

void append(Key& key, const c10::IValue& value) {
  if (value.isInt()) {
    key.push_back(value.toInt());
  } else if (value.isBool()) {
    key.push_back(value.toBool());
  } else if (value.isNone()) {
    key.push_back(INT64_MIN);
  } else if (value.isDouble()) {
    int64_t bits;
    double number = value.toDouble();
    std::memcpy(&bits, &number, sizeof bits);
    key.push_back(bits);
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
  } else if (value.isDoubleList() || value.isScalar()) {
    key.push_back(1);
  } else {
    key.push_back(0);
  }
}

Key key_of(const Call& call) {
  Key key;
  key.push_back(reinterpret_cast<int64_t>(&call.op));
  key.push_back(call.mesh->sequence_parallel());
  for (Mesh::Dim dim : {Mesh::dp, Mesh::mp})
    key.push_back(call.mesh->size(dim) << 32 | call.mesh->coordinate(dim));
  for (const TensorArgument& argument : call.tensors) {
    at::IntArrayRef sizes = argument.sizes();
    key.push_back(int64_t(argument.argument) | int64_t(sizes.size()) << 16 |
                  int64_t(argument.tensor.scalar_type()) << 32 |
                  int64_t(argument.impl != nullptr) << 48);
    key.append(sizes.begin(), sizes.end());
    if (argument.impl)
      for (const Placement& placement : argument.placements) append(key, placement);
    if (call.op.is_view || call.op.is_inplace_view) {
      key.append(argument.tensor.strides().begin(), argument.tensor.strides().end());
      key.push_back(argument.tensor.storage_offset());
    }
  }
  for (size_t i = 0; i < call.arguments.size(); ++i)
    if (call.op.is_keyed[i] && !call.arguments[i].isTensor() && !call.arguments[i].isTensorList())
      append(key, call.arguments[i]);
  return key;
}

// Whether what the call writes to has the sizes of its results. If not it will be resized.
bool fits_results(const Call& call, const Plan& plan) {
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

Plan make_plan(const Call& call) {
  ++sharding_counters().plans_made;
  bool is_whole = std::all_of(
      call.tensors.begin(), call.tensors.end(),
      [](const TensorArgument& argument) { return is_replicated(argument.placements); });
  if (!is_whole && call.op.rule)
    if (std::optional<Plan> plan = call.op.rule(call))
      if (call.op.is_inplace_view || fits_results(call, *plan)) return std::move(*plan);
  return gathered_plan(call);
}

}  // namespace

const Plan& plan_for(const Call& call) {
  // Shapes that never come back must not fill the memory.
  constexpr size_t most_plans = 1 << 15;
  thread_local std::unordered_map<Key, Plan, KeyHash> plans;
  Key key = key_of(call);
  auto found = plans.find(key);
  if (found == plans.end()) {
    if (plans.size() >= most_plans) plans.clear();
    found = plans.emplace(std::move(key), make_plan(call)).first;
  } else {
    ++sharding_counters().plans_found;
  }
  return found->second;
}

}  // namespace redco
