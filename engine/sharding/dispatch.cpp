// The one fallback that sees every operator with a sharded tensor among its arguments: it finds the
// plan of the call, brings the arguments where the plan wants them, runs the operator on the parts
// and wraps the results.

#include "plan.h"
#include "rules.h"
#include "tracer.h"

#include <redco/error.h>
#include <redco/parameter_store.h>
#include <redco/random.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/function.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>

namespace redco {

namespace {

using torch::jit::Stack;

// --- What is known of an operator --------------------------------------------------------------

// These values never bear on where tensors lie, and change from call to call.
bool is_keyed_type(const c10::TypePtr& type, const std::string& operator_name) {
  switch (type->kind()) {
    case c10::TypeKind::OptionalType:
      return is_keyed_type(type->castRaw<c10::OptionalType>()->getElementType(), operator_name);
    case c10::TypeKind::FloatType:
    case c10::TypeKind::NumberType:
      return operator_name.find("norm") != std::string::npos;  // the order of a norm
    case c10::TypeKind::DeviceObjType:
      return false;
    default:
      return true;
  }
}

std::string base_name(const c10::FunctionSchema& schema) {
  std::string name = schema.name();
  bool is_inplace = name.size() > 1 && name.back() == '_' && name[name.size() - 2] != '_';
  if (is_inplace) name.pop_back();
  return name;
}

// Operators that change arguments which their schema does not mark.
const std::unordered_map<std::string, std::vector<std::string>> unmarked_writes = {
    {"aten::native_batch_norm", {"running_mean", "running_var"}},
    {"aten::cudnn_batch_norm", {"running_mean", "running_var"}},
    {"aten::miopen_batch_norm", {"running_mean", "running_var"}},
};

// Gradients that an optimizer unscales on its way: nobody reads them after it, so where they had to
// be brought elsewhere they are not brought back.
const std::unordered_map<std::string, std::string> scratch = {
    {"aten::_fused_adam", "grads"},
    {"aten::_fused_adamw", "grads"},
    {"aten::_fused_sgd", "grads"},
};

Operator describe(const c10::OperatorHandle& handle) {
  const c10::FunctionSchema& schema = handle.schema();
  Operator op{handle, base_name(schema), handle.hasTag(at::Tag::inplace_view), false, {}, {}, {},
              {}};
  for (const c10::Argument& argument : schema.arguments()) {
    op.is_keyed.push_back(is_keyed_type(argument.type(), op.name));
    op.is_written.push_back(argument.alias_info() && argument.alias_info()->isWrite());
  }
  if (auto found = unmarked_writes.find(op.name); found != unmarked_writes.end())
    for (size_t i = 0; i < op.is_written.size(); ++i)
      for (const std::string& name : found->second)
        if (schema.arguments()[i].name() == name) op.is_written[i] = true;
  if (auto found = scratch.find(op.name); found != scratch.end())
    for (size_t i = 0; i < op.is_written.size(); ++i)
      if (schema.arguments()[i].name() == found->second) op.is_written[i] = false;
  for (const c10::Argument& result : schema.returns()) {
    int source = -1;
    const c10::AliasInfo* alias = result.alias_info();
    if (alias && !alias->isWrite()) op.is_view = true;
    for (size_t i = 0; alias && alias->isWrite() && i < schema.arguments().size(); ++i) {
      const c10::AliasInfo* other = schema.arguments()[i].alias_info();
      if (other && other->isWrite() && other->beforeSets() == alias->beforeSets()) source = int(i);
    }
    op.returned.push_back(source);
  }
  for (size_t i = 0; i < schema.arguments().size(); ++i)
    if (schema.arguments()[i].name() == "generator") op.generator = int(i);
  op.rule = find_rule(op.name, handle);
  return op;
}

const Operator& known(const c10::OperatorHandle& handle) {
  thread_local std::unordered_map<const c10::FunctionSchema*, Operator> operators;
  const c10::FunctionSchema* key = &handle.schema();
  auto found = operators.find(key);
  if (found == operators.end()) found = operators.emplace(key, describe(handle)).first;
  return found->second;
}

// --- What a plan depends on ----------------------------------------------------------------------

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

// --- Plans
// -----------------------------------------------------------------------------------------

bool is_replicated(const Placements& placements) {
  return placements[Mesh::dp].is_replicated() && placements[Mesh::mp].is_replicated();
}

bool is_split(const Placements& placements) {
  return placements[Mesh::dp].is_sharded() || placements[Mesh::mp].is_sharded();
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

// --- Running a plan
// ----------------------------------------------------------------------------------

// Sums that are wanted whole are made so where they lie: every later reader finds them reduced. All
// of it comes before any argument is read, for two of them may share memory.
void reduce_in_place(Call& call, const Plan& plan) {
  for (size_t i = 0; i < call.tensors.size(); ++i)
    for (size_t dim = 0; dim < Mesh::n_dims; ++dim)
      if (call.tensors[i].placements[dim].is_partial() && plan.inputs[i][dim].is_replicated() &&
          call.tensors[i].impl->placements()[dim].is_partial())
        call.tensors[i].impl->reduce_in_place(Mesh::Dim(dim));
}

at::Tensor brought(const TensorArgument& argument, const Placements& target, const Mesh& mesh) {
  const Placements now = argument.impl ? argument.impl->placements() : Placements();
  return redistribute_local(argument.local(), argument.sizes(), now, target, mesh);
}

Geometry geometry_of(const OutputPlan& plan, const at::Tensor& local) {
  if (plan.geometry) return *plan.geometry;
  Sizes sizes(local.sizes().begin(), local.sizes().end());
  if (!is_split(plan.placements))
    return {sizes, Sizes(local.strides().begin(), local.strides().end()), local.storage_offset()};
  for (size_t dim = 0; dim < plan.sizes.size(); ++dim)
    if (plan.sizes[dim] >= 0) sizes[dim] = plan.sizes[dim];
  return dense_geometry(sizes, local);
}

// The results of one call, wrapped one after the other.
class Results {
 public:
  Results(const Call& call, const Plan& plan) : call_(call), plan_(plan) {}

  c10::IValue wrapped(c10::IValue value) {
    if (value.isTensor()) return wrapped(value.toTensor());
    if (!value.isTensorList()) return value;
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(wrapped(tensor));
    return list;
  }

  // A written argument is returned as it was given.
  void skip(const c10::IValue& written) {
    next_ += written.isTensorList() ? written.toTensorVector().size() : 1;
  }

 private:
  at::Tensor wrapped(at::Tensor local) {
    static const OutputPlan whole;
    const OutputPlan& plan = next_ < plan_.outputs.size() ? plan_.outputs[next_] : whole;
    ++next_;
    if (!local.defined()) return local;
    Geometry geometry = geometry_of(plan, local);
    Placements placements = plan.placements;
    if (geometry.sizes.empty()) reduce(local, placements);
    if (is_split_along_sequence(geometry, placements)) {
      Placements split = placements;
      split[Mesh::mp] = Placement::shard(1);
      local = redistribute_local(local, geometry.sizes, placements, split, *call_.mesh);
      placements = split;
      geometry = dense_geometry(geometry.sizes, local);
    }
    if (!call_.op.is_view) return wrap(std::move(local), placements, call_.mesh, geometry);
    // In inference mode a view of a tensor from outside is none of that mode's.
    std::optional<c10::InferenceMode> mode;
    if (c10::InferenceMode::is_enabled()) mode.emplace(call_.tensors[0].tensor.is_inference());
    at::Tensor result = wrap(std::move(local), placements, call_.mesh, geometry);
    be_view(*sharded_impl(result));
    return result;
  }

  // In backward a gradient stays a sum: that of several products with one activation is reduced
  // once, where it meets the activation.
  bool is_split_along_sequence(const Geometry& geometry, const Placements& placements) const {
    return call_.mesh->sequence_parallel() && placements[Mesh::mp].is_partial() &&
           geometry.sizes.size() == 3 && geometry.sizes[1] >= call_.mesh->size(Mesh::mp) &&
           !torch::autograd::get_current_node();
  }

  // A number is read by `item`, which one process may call alone.
  void reduce(at::Tensor& local, Placements& placements) {
    if (is_replicated(placements)) return;
    local = redistribute_local(local, {}, placements, {}, *call_.mesh);
    placements = {};
  }

  void be_view(ShardedTensorImpl& result) {
    ShardedTensorImpl* base = call_.tensors[0].impl;
    if (!base) return;
    bool is_view =
        plan_.inputs[0] == call_.tensors[0].placements && result.local().is_alias_of(base->local());
    if (is_view) result.be_view_of(*base);
    if (!is_view || base->is_copy_of_view()) result.mark_copy_of_view();
  }

  const Call& call_;
  const Plan& plan_;
  size_t next_ = 0;
};

void count_gather(const Call& call, const Plan& plan) {
  double bytes = 0;
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    const TensorArgument& argument = call.tensors[i];
    double local_bytes = part_bytes(argument, *call.mesh);
    for (size_t dim = 0; dim < Mesh::n_dims; ++dim)
      bytes += redistribution_cost(argument.placements[dim], plan.inputs[i][dim], local_bytes,
                                   call.mesh->size(Mesh::Dim(dim)));
  }
  ShardingCounters::Gather& gather = sharding_counters().gathers[call.op.name];
  ++gather.count;
  gather.bytes += int64_t(bytes);
}

// An `out` argument that had another size.
void be_resized(const TensorArgument& argument, const at::Tensor& result) {
  require(!is_split(argument.placements), "out: a tensor of shape ", argument.sizes(),
          " laid out as ", to_string(argument.placements), " cannot be resized to ", result.sizes(),
          ": give one of that shape, or one that is whole");
  argument.impl->set_local(
      result, {}, {Sizes(result.sizes()), Sizes(result.strides()), result.storage_offset()});
}

// Written arguments must keep their placement: what was worked on elsewhere is brought back.
void write_back(const TensorArgument& argument, const Placements& worked_on,
                const at::Tensor& result, const Mesh& mesh) {
  if (!argument.impl) {
    at::Tensor whole = redistribute_local(result, argument.sizes(), worked_on, {}, mesh);
    if (!whole.is_same(argument.tensor)) argument.tensor.copy_(whole);
    return;
  }
  if (!is_split(worked_on) && result.sizes() != argument.sizes())
    return be_resized(argument, result);
  const at::Tensor& local = argument.impl->local();
  const Placements& now = argument.impl->placements();  // a sum may have been reduced where it lies
  // On the first rank a whole tensor is its own term of a sum.
  if (result.is_same(local) && worked_on == now) return;
  const_cast<at::Tensor&>(local).copy_(
      redistribute_local(result, argument.sizes(), worked_on, now, mesh));
}

void check_writable(const Call& call) {
  for (const TensorArgument& argument : call.tensors)
    require(
        !argument.is_written || !argument.impl || !argument.impl->is_copy_of_view(), call.op.name,
        ": this tensor of shape ", argument.sizes(),
        " was to be a view of a sharded one, but "
        "had to be gathered, so what is written to it would be lost. Write to the whole tensor, "
        "or use the operator that returns a new one");
}

// Whether an operator works on the parts of stored parameters: it writes to one, or works element
// by element on tensors that all lie alike.
bool works_on_parts(const Call& call) {
  for (const TensorArgument& argument : call.tensors)
    if (argument.is_written && argument.impl && argument.impl->stored()) return true;
  if (!call.op.handle.hasTag(at::Tag::pointwise)) return false;
  return std::all_of(call.tensors.begin(), call.tensors.end(), [&](const TensorArgument& argument) {
    return argument.tensor.dim() == 0 || (argument.placements == call.tensors[0].placements &&
                                          argument.sizes() == call.tensors[0].sizes());
  });
}

void bring_stored(Call& call) {
  bool any = std::any_of(
      call.tensors.begin(), call.tensors.end(),
      [](const TensorArgument& argument) { return argument.impl && argument.impl->stored(); });
  if (!any || dimension_order(call) || works_on_parts(call)) return;
  for (TensorArgument& argument : call.tensors) {
    if (!argument.impl || !argument.impl->stored()) continue;
    const StoredPart& part = *argument.impl->stored();
    at::Tensor whole =
        part.store->gathered(part.param, argument.tensor.scalar_type()).permute(part.order);
    argument.placements[Mesh::dp] = {};
    argument.tensor =
        wrap(whole, argument.placements, call.mesh, dense_geometry(argument.sizes(), whole));
    argument.impl = sharded_impl(argument.tensor);
  }
}

// What is seen otherwise is gathered where the parameter is.
void pass_storage_on(const Call& call, const c10::SmallVector<c10::IValue, 4>& results) {
  ShardedTensorImpl* base = call.tensors[0].impl;
  if (!base || !base->stored() || results.size() != 1 || !results[0].isTensor()) return;
  ShardedTensorImpl* result = sharded_impl(results[0].toTensor());
  auto order = dimension_order(call);
  if (result && result != base && order) result->be_stored_like(*base, *order);
}

void run(Call& call, const Plan& plan, Stack* stack) {
  if (plan.is_gathered) count_gather(call, plan);
  check_writable(call);
  reduce_in_place(call, plan);
  Stack local(call.arguments.begin(), call.arguments.end());
  std::vector<at::Tensor> inputs;
  inputs.reserve(call.tensors.size());
  std::vector<c10::List<at::Tensor>> lists;
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    TensorArgument& argument = call.tensors[i];
    inputs.push_back(brought(argument, plan.inputs[i], *call.mesh));
    // Others hold the same local tensor: its sizes may not change under them.
    if (call.op.is_inplace_view && argument.is_written) inputs.back() = inputs.back().alias();
    c10::IValue& slot = local[argument.argument];
    if (argument.element < 0) {
      slot = inputs.back();
    } else if (slot.isTensorList()) {
      // A list is shared by its owners: the first of its elements copies it.
      if (i == 0 || call.tensors[i - 1].argument != argument.argument)
        slot = slot.toTensorList().copy();
      slot.toTensorList().set(size_t(argument.element), inputs.back());
    } else {
      if (i == 0 || call.tensors[i - 1].argument != argument.argument) slot = slot.toList().copy();
      slot.toList().set(size_t(argument.element), inputs.back());
    }
  }
  for (const auto& [index, value] : plan.arguments) local[index] = value;
  // A boxed call does not dispatch on its generator.
  std::optional<WithRng> with_rng;
  if (call.op.generator >= 0 && local[size_t(call.op.generator)].isGenerator())
    if (at::Generator rng = local[size_t(call.op.generator)].toGenerator(); counter_generator(rng))
      with_rng.emplace(std::move(rng));
  if (Tracer* tracer = current_tracer())
    tracer->run(call, plan, local);
  else if (plan.run)
    plan.run(call.op, local, *call.mesh);
  else
    call.op.handle.callBoxed(&local);

  for (size_t i = 0; i < call.tensors.size(); ++i) {
    TensorArgument& argument = call.tensors[i];
    if (!argument.is_written) continue;
    if (call.op.is_inplace_view && argument.impl) {
      const OutputPlan output = plan.outputs.empty() ? OutputPlan() : plan.outputs[0];
      if (plan.inputs[i] != argument.placements) argument.impl->mark_copy_of_view();
      argument.impl->set_local(inputs[i], output.placements, geometry_of(output, inputs[i]));
    } else {
      write_back(argument, plan.inputs[i], inputs[i], *call.mesh);
    }
    // Operators on lists leave this to what they call for each tensor.
    if (argument.element >= 0) argument.tensor.unsafeGetTensorImpl()->bump_version();
  }
  Results results(call, plan);
  c10::SmallVector<c10::IValue, 4> wrapped;
  for (size_t i = 0; i < call.op.returned.size(); ++i) {
    int source = call.op.returned[i];
    if (source >= 0)
      results.skip(call.arguments[size_t(source)]);
    else
      local[i] = results.wrapped(std::move(local[i]));
  }
  for (size_t i = 0; i < call.op.returned.size(); ++i) {
    int source = call.op.returned[i];
    wrapped.push_back(source >= 0 ? call.arguments[size_t(source)] : std::move(local[i]));
  }
  pass_storage_on(call, wrapped);
  if (Tracer* tracer = current_tracer()) tracer->after(call, plan, wrapped);
  torch::jit::drop(*stack, call.arguments.size());
  for (c10::IValue& value : wrapped) stack->push_back(std::move(value));
}

void fallback(const c10::OperatorHandle& handle, Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard once(c10::DispatchKey::Fake);
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const Operator& op = known(handle);
  Call call(op, *stack);
  if (!call.mesh) {
    handle.callBoxed(stack);
    return;
  }
  bring_stored(call);
  if (Tracer* tracer = current_tracer()) tracer->before(call);
  run(call, plan_for(call), stack);
}

TORCH_LIBRARY_IMPL(_, Fake, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

}  // namespace

Call::Call(const Operator& op, const Stack& stack)
    : op(op),
      arguments(stack.data() + (stack.size() - op.schema().arguments().size()),
                op.schema().arguments().size()) {
  auto add = [&](size_t argument, int64_t element, const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    ShardedTensorImpl* impl = sharded_impl(tensor);
    require(impl || !tensor.key_set().has(c10::DispatchKey::Fake), op.name,
            ": a plain tensor was given the data of a sharded one by set_data, and holds none; "
            "replace the tensor instead");
    if (impl && !mesh) mesh = impl->mesh();
    tensors.push_back({argument, element, tensor, impl, impl ? impl->placements() : Placements(),
                       bool(op.is_written[argument])});
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = arguments[i];
    if (value.isTensor()) {
      add(i, -1, value.toTensor());
    } else if (value.isTensorList()) {
      const auto list = value.toTensorList();
      for (size_t j = 0; j < list.size(); ++j) add(i, int64_t(j), list.get(j));
    } else if (value.isList()) {
      const auto list = value.toList();
      for (size_t j = 0; j < list.size(); ++j) {
        const c10::IValue element = list.get(j);
        if (element.isTensor()) add(i, int64_t(j), element.toTensor());
      }
    }
  }
}

int Call::index_of(std::string_view name) const {
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i)
    if (arguments[i].name() == name) return int(i);
  return -1;
}

const c10::IValue* Call::find(std::string_view name) const {
  int index = index_of(name);
  return index < 0 ? nullptr : &arguments[size_t(index)];
}

int64_t Call::integer(std::string_view name, int64_t otherwise) const {
  const c10::IValue* value = find(name);
  return value && value->isInt() ? value->toInt() : otherwise;
}

bool Call::boolean(std::string_view name, bool otherwise) const {
  const c10::IValue* value = find(name);
  return value && value->isBool() ? value->toBool() : otherwise;
}

std::optional<std::vector<int64_t>> Call::dims(std::string_view name, int64_t n_dims) const {
  const c10::IValue* value = find(name);
  if (!value || value->isNone()) return std::nullopt;
  std::vector<int64_t> dims =
      value->isInt() ? std::vector<int64_t>{value->toInt()} : value->toIntVector();
  for (int64_t& dim : dims)
    if (dim < 0) dim += n_dims;
  return dims;
}

int Call::tensor_of(std::string_view name) const {
  int index = index_of(name);
  for (size_t i = 0; i < tensors.size(); ++i)
    if (int(tensors[i].argument) == index) return int(i);
  return -1;
}

Tracer*& current_tracer() {
  thread_local Tracer* tracer = nullptr;
  return tracer;
}

ShardingCounters& sharding_counters() {
  thread_local ShardingCounters counters;
  return counters;
}

}  // namespace redco
