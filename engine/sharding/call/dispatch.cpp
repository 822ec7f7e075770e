// The fallback for every operator with a sharded tensor among its arguments: finds the plan of the
// call, redistributes the arguments, runs the operator on the local tensors and wraps the results.

#include "../../mesh/spmd_log.h"
#include "../operators/rules.h"
#include "../report/advice.h"
#include "../stages/absent_stage.h"
#include "../stages/running_pass.h"
#include "../stages/staged_calls.h"
#include "../tensor/gathered_view.h"
#include "../tensor/last_redistribution.h"
#include "check_calls.h"
#include "execution.h"
#include "expert_calls.h"
#include "results.h"

#include <redco/detail/kept_results.h>
#include <redco/detail/zero3_store.h>
#include <redco/error.h>
#include <redco/moves.h>
#include <redco/random.h>

#include <ATen/ops/empty_strided.h>
#include <torch/csrc/autograd/function.h>
#include <torch/library.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

namespace redco::sharding {

namespace {

using torch::jit::Stack;

// Reduces partial arguments in place if a plan needs them replicated, so that later readers need no
// second reduction. Does the same if it needs them split and backward may read them: a second
// reduction could give other bits, and an operator that compares its result with its argument, such
// as `amax`, would find no equal elements. Runs before any argument is read, because two arguments
// may share memory.
void reduce_in_place(Call& call, const CallPlan& plan) {
  const bool is_forward = !torch::autograd::get_current_node();
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    const TensorArgument& argument = call.tensors[i];
    auto is_needed = [&](Mesh::Dim dim) {
      const Placement& target = plan.inputs[i][dim];
      bool is_read_again = target.is_sharded() && is_forward && argument.tensor.requires_grad();
      return argument.placements[dim].is_partial() && (target.is_replicated() || is_read_again);
    };
    // Reduces over mesh dimensions in the order of all other reductions. A sum rounds by its order,
    // and must have the same bits as a view that was read before. So all dimensions before the last
    // needed one are reduced too.
    auto last = std::find_if(Mesh::dims.rbegin(), Mesh::dims.rend(), is_needed);
    for (auto dim = Mesh::dims.begin(); dim != last.base(); ++dim)
      if (argument.placements[*dim].is_partial() && argument.impl->placements()[*dim].is_partial())
        argument.impl->reduce_in_place(*dim);
  }
}

at::Tensor redistributed(const Call& call, const TensorArgument& argument,
                         const Placements& target) {
  const Placements now = argument.impl ? argument.impl->placements() : Placements();
  // Does not cache tensors that are written to, or of which the result is a view.
  bool is_cacheable = !argument.is_written && !call.op.is_view && execution().is_faithful() &&
                      now != target && LastRedistribution::may_hold(argument);
  if (is_cacheable)
    if (at::Tensor held = last_redistribution().find(argument, target); held.defined()) return held;
  at::Tensor result = redistribute_local(argument.local(), argument.sizes(),
                                         argument.tensor.strides(), now, target, *call.mesh);
  // Some kernels ignore the strides of their arguments. On a part of a larger tensor they would
  // also read the elements between, so copies the part.
  bool is_cut = now != target && result.is_alias_of(argument.local());
  if (is_cut && !argument.is_written && !call.op.is_view && !is_pointwise(call.op))
    result = laid_out(result, geometry_of(argument.tensor));
  if (is_cacheable) last_redistribution().hold(argument, target, result);
  return result;
}

// Resizes an `out` argument to the result's shape.
void resize_out(const TensorArgument& argument, const at::Tensor& result) {
  require(!is_split(argument.placements), "out: a tensor of shape ", argument.sizes(),
          " laid out as ", to_string(argument.placements), " cannot be resized to ", result.sizes(),
          ": give one of that shape, or one that is whole");
  argument.impl->set_local(result, {}, geometry_of(result));
}

// Written arguments keep their placement: redistributes the result to it.
void write_back(const TensorArgument& argument, const Placements& worked_on,
                const at::Tensor& result, const Mesh& mesh) {
  if (!argument.impl) {
    const Execution& how = execution();
    if (!how.is_faithful()) return;
    if (!how.has_values()) {
      redistribute_local(result, argument.sizes(), argument.tensor.strides(), worked_on, {}, mesh);
      return;
    }
    if (is_replicated(worked_on)) {
      if (!result.is_same(argument.tensor)) overwrite(argument.tensor, result);
      return;
    }
    // The thread of a collective keeps a reference to the sent tensor for a while. Autograd
    // accumulates gradients in place if nothing else references their memory, and must decide alike
    // on all processes.
    at::Tensor part = result.is_alias_of(argument.tensor) ? result.clone() : result;
    overwrite(argument.tensor, redistribute_local(part, argument.sizes(), argument.tensor.strides(),
                                                  worked_on, {}, mesh));
    return;
  }
  if (!is_split(worked_on) && result.sizes() != argument.sizes())
    return resize_out(argument, result);
  const at::Tensor& local = argument.impl->local();
  // The argument may have been reduced in place.
  const Placements& now = argument.impl->placements();
  // A replicated tensor may be the first rank's own term of the sum.
  if (result.is_same(local) && worked_on == now) return;
  overwrite(local, redistribute_local(result, argument.sizes(), argument.tensor.strides(),
                                      worked_on, now, mesh));
}

// Whether an operator works on the local parts of ZeRO-3 parameters instead of gathering them: it
// writes to one, or is elementwise on tensors with the same placements.
bool works_on_parts(const Call& call) {
  for (const TensorArgument& argument : call.tensors)
    if (argument.is_written && argument.impl && argument.impl->stored()) return true;
  if (!call.op.handle.hasTag(at::Tag::pointwise)) return false;
  return std::all_of(call.tensors.begin(), call.tensors.end(), [&](const TensorArgument& argument) {
    return argument.tensor.dim() == 0 || (argument.placements == call.tensors[0].placements &&
                                          argument.sizes() == call.tensors[0].sizes());
  });
}

bool is_parameter(const TensorArgument& argument) {
  const StoredPart& part = *argument.impl->stored();
  return part.is_absent_parameter || part.store->owns(part.param, argument.local());
}

// Gathers a parameter. On the processes of an absent stage returns a tensor that only has the
// shape.
at::Tensor gathered_local(const Call& call, const TensorArgument& argument) {
  const StoredPart& part = *argument.impl->stored();
  if (!call.mesh->is_absent())
    return part.store->gathered(part.param, argument.tensor.scalar_type()).permute(part.order);
  Placements placements = argument.placements;
  for (Mesh::Dim dim : part.store->dims(part.param)) placements[dim] = {};
  const Sizes sizes = local_sizes(argument.sizes(), placements, *call.mesh);
  return at::empty_strided(sizes, dense_geometry(sizes, argument.tensor.strides()).strides,
                           argument.local().options());
}

// Whether the store holds the values of this tensor: a parameter, or a converted copy of one if
// neither has been written to.
bool is_in_store(const TensorArgument& argument) {
  if (!argument.impl || !argument.impl->stored()) return false;
  if (is_parameter(argument)) return true;
  const at::Tensor& local = argument.local();
  const StoredPart& part = *argument.impl->stored();
  return !local.is_inference() && local._version() == 0 &&
         part.store->version(part.param) == part.version;
}

void gather_stored(Call& call) {
  bool any = std::any_of(call.tensors.begin(), call.tensors.end(),
                         [](const TensorArgument& argument) { return is_in_store(argument); });
  if (!any || dimension_order(call) || works_on_parts(call)) return;
  for (TensorArgument& argument : call.tensors) {
    if (!is_in_store(argument)) continue;
    const StoredPart& part = *argument.impl->stored();
    at::Tensor whole = gathered_local(call, argument);
    // Clones the copy, so that a write to a view of it does not change the parameter.
    if (call.op.is_view && !is_parameter(argument)) whole = whole.clone();
    for (Mesh::Dim dim : part.store->dims(part.param)) argument.placements[dim] = {};
    argument.stored = std::exchange(
        argument.tensor, wrap(whole, argument.placements, call.mesh,
                              dense_geometry(argument.sizes(), argument.tensor.strides())));
    argument.impl = sharded_impl(argument.tensor);
  }
}

// A permuted or converted ZeRO-3 parameter is gathered by the same store, with two exceptions: a
// copy that was converted twice has other values than the parameter converted once, and floats that
// were rounded for other operators give other integers.
void pass_storage_on(const Call& call, const c10::SmallVector<c10::IValue, 4>& results) {
  const TensorArgument& argument = call.tensors[0];
  if (!is_in_store(argument) || results.size() != 1 || !results[0].isTensor()) return;
  const at::Tensor& tensor = results[0].toTensor();
  ShardedTensorImpl* result = sharded_impl(tensor);
  auto order = dimension_order(call);
  if (!result || result == argument.impl || !order) return;
  bool converts_parameter = is_parameter(argument) && tensor.is_floating_point();
  if (converts_parameter || tensor.scalar_type() == argument.tensor.scalar_type())
    result->be_stored_like(*argument.impl, *order);
}

// Changes the tensor's view of its memory after an in-place view operator.
void change_view(const Call& call, const CallPlan& plan, const TensorArgument& argument,
                 const at::Tensor& local) {
  const OutputPlan output = plan.outputs.empty() ? OutputPlan() : plan.outputs[0];
  if (plan.inputs[0] != argument.placements || argument.impl->gathered_view())
    argument.impl->set_gathered_view(std::make_shared<GatheredView>(call, 0, plan.inputs[0]));
  argument.impl->set_local(local, output.placements, geometry_of(output, local, *call.mesh));
}

class OnParts final : public Execution {
 public:
  bool has_values() const override { return true; }
  void before(Call&) override {}
  void run(const Call& call, const CallPlan& plan, Stack& local) override {
    call_on(call, plan, local);
  }
  void after(const Call&, const CallPlan&, c10::ArrayRef<c10::IValue>) override {}
};

thread_local Execution* other_execution = nullptr;

void run(Call& call, const CallPlan& plan, Stack* stack) {
  Moving moving(plan.is_gathered ? Move::without_rule : Move::operator_cause, call.op.name);
  reduce_in_place(call, plan);
  Stack local(call.arguments.begin(), call.arguments.end());
  std::vector<at::Tensor> inputs;
  inputs.reserve(call.tensors.size());
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    TensorArgument& argument = call.tensors[i];
    inputs.push_back(redistributed(call, argument, plan.inputs[i]));
    // Other tensors share the local tensor, so its sizes must not change.
    if (call.op.is_inplace_view && argument.is_written) inputs.back() = alias_of(inputs.back());
  }
  set_tensors(call, inputs, local);
  for (const auto& [index, value] : plan.arguments) local[index] = value;
  // A boxed call does not dispatch on its generator.
  std::optional<WithRng> with_rng;
  if (call.op.generator >= 0 && local[size_t(call.op.generator)].isGenerator())
    if (at::Generator rng = local[size_t(call.op.generator)].toGenerator(); counter_generator(rng))
      with_rng.emplace(std::move(rng));
  execution().run(call, plan, local);
  if (call.mesh->stage()) share_values(call, local);

  for (size_t i = 0; i < call.tensors.size(); ++i) {
    TensorArgument& argument = call.tensors[i];
    if (!argument.is_written) continue;
    if (call.op.is_inplace_view && argument.impl) {
      change_view(call, plan, argument, inputs[i]);
      continue;
    }
    last_redistribution().forget(argument.local());
    write_back(argument, plan.inputs[i], inputs[i], *call.mesh);
    if (argument.impl && execution().is_faithful()) note_write(*argument.impl);
    // An operator on lists leaves counting writes to the operators that it calls for each tensor.
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
  execution().after(call, plan, wrapped);
  // Sequence parallelism gathers by design.
  if (call.mesh->processes().rank == 0 && !call.mesh->sequence_parallel())
    warn_of_gather(moving.gathered());
  torch::jit::drop(*stack, call.arguments.size());
  for (c10::IValue& value : wrapped) stack->push_back(std::move(value));
}

void fallback(const c10::OperatorHandle& handle, Stack* stack) {
  BelowSharding below;
  run_sharded(handle, stack);
}

TORCH_LIBRARY_IMPL(_, Fake, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

void run_call(Call& call, Stack* stack) {
  if (!call.mesh) {
    PlainCalls take_over = plain_calls();
    if (!take_over || !take_over(call.op.handle, *stack)) call.op.handle.callBoxed(stack);
    return;
  }
  // Pauses the log, because other stages do not make the calls that this call makes.
  std::optional<mesh::PausedLog> paused;
  if (call.mesh->stage()) {
    paused.emplace();
    put_on_stage(call);
  } else if (call.mesh->size(Mesh::pipeline) > 1) {
    check_stages_are_together(call);
  }
  InCall in_call(call);
  last_redistribution().drop_unreachable();
  std::optional<OnAbsentStage> on_absent_stage(std::in_place, *call.mesh);
  gather_stored(call);
  execution().before(call);
  if (call.mesh->size(Mesh::expert) > 1 && run_at_experts(call, stack)) return;
  on_absent_stage.reset();  // all processes make the same plan
  const auto& plan = plan_for(call);
  on_absent_stage.emplace(*call.mesh);
  run(call, plan, stack);
}

// Returns the floating-point operations, for whole tensors, of a call whose results a selective
// recomputation may keep.
std::optional<double> flops_to_keep(const Call& call) {
  const OperatorFacts& facts = call.op.facts;
  const bool is_kind = facts.flops && (facts.is_product || facts.has_heads);
  if (!is_kind || call.draws_numbers()) return std::nullopt;
  return facts.flops(call.arguments);
}

}  // namespace

void run_sharded(const c10::OperatorHandle& handle, Stack* stack) {
  Call call(known_operator(handle), *stack);
  KeptResults* kept = KeptResults::current();
  std::optional<double> flops = kept ? flops_to_keep(call) : std::nullopt;
  if (flops && kept->take(handle, *stack)) return;
  run_call(call, stack);
  if (!kept) return;
  kept->look_at(handle, *stack);
  if (flops) kept->keep(handle, *stack, *flops);
}

void call_on(const Call& call, const CallPlan& plan, Stack& local) {
  if (!plan.run) return call.op.handle.callBoxed(&local);
  Moving moving(Move::within_operator, call.op.name);
  plan.run(call.op, local, *call.mesh);
}

Execution& execution() {
  static OnParts on_parts;
  return other_execution != nullptr ? *other_execution : on_parts;
}

PlainCalls& plain_calls() {
  thread_local PlainCalls calls = nullptr;
  return calls;
}

WithExecution::WithExecution(Execution* execution)
    : previous_(std::exchange(other_execution, execution)) {}
WithExecution::~WithExecution() { other_execution = previous_; }

}  // namespace redco::sharding

namespace redco {

ShardingCounters& sharding_counters() {
  thread_local ShardingCounters counters;
  return counters;
}

}  // namespace redco
