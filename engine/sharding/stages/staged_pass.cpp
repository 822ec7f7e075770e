// Moves the arguments of each operator to one stage, above autograd.

#include <redco/detail/staged_pass.h>

#include "../../mesh/spmd_log.h"
#include "../call/map_tensors.h"
#include "moves.h"
#include "pass_digest.h"
#include "running_pass.h"
#include "staged_calls.h"

#include <redco/detail/operator_interceptor.h>
#include <redco/detail/recomputing.h>
#include <redco/error.h>
#include <redco/sharding.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>

namespace redco {

using namespace sharding;

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using torch::jit::Stack;

thread_local StagedPass* running = nullptr;

bool is_recorded(const at::Tensor& tensor) {
  return at::GradMode::is_enabled() && tensor.requires_grad();
}

struct MeshHolder : torch::CustomClassHolder {
  explicit MeshHolder(std::shared_ptr<const Mesh> mesh) : mesh(std::move(mesh)) {}
  std::shared_ptr<const Mesh> mesh;
};

void keep(AutogradContext* ctx, const char* name, const std::shared_ptr<const Mesh>& mesh) {
  ctx->saved_data[name] = c10::IValue::make_capsule(c10::make_intrusive<MeshHolder>(mesh));
}

std::shared_ptr<const Mesh> kept(AutogradContext* ctx, const char* name) {
  return c10::static_intrusive_pointer_cast<MeshHolder>(ctx->saved_data[name].toCapsule())->mesh;
}

}  // namespace

namespace sharding {

// Access to the running pass for the functions below.
class StagedCalls {
 public:
  static StagedPass& pass() {
    require(running != nullptr,
            "a tensor of one stage of a pipeline is used outside of the loss_fn or pred_fn that "
            "computed it: return it as a metric, or as a prediction");
    return *running;
  }
  static Sends& sends() { return pass().sends_; }
  static const std::shared_ptr<const Mesh>& run() { return pass().run_; }
  static std::shared_ptr<const Mesh> stage(int64_t stage) {
    return run()->of_stage(stage, pass().computing_);
  }
  static int64_t& current() { return pass().current_; }
  // Whether a gradient of this stage counts in this pass. The passes for other chunks of the stages
  // give none, so that all processes add up as many: sums may have other strides than a first
  // gradient, and the calls of the step depend on these.
  static bool is_of_row(int64_t stage) {
    const int64_t n = run()->size(stages);
    return !pass().computing_ || *pass().computing_ / n == stage / n;
  }
  static void note_draw(const at::Generator& generator) {
    if (pass().computing_) pass().digest_ = with_draw(pass().digest_, generator);
  }
  static void note_call(const c10::OperatorHandle& op, const Stack& stack) {
    StagedPass& now = pass();
    if (now.computing_ && !now.is_backward_) now.digest_ = with_call(now.digest_, op, stack);
  }
  static bool is_scheduled() {
    return running != nullptr && running->order_ == StagedPass::scheduled;
  }
  static bool is_backward() { return running != nullptr && running->is_backward_; }
  static void set_backward(StagedPass& pass, bool is_backward) { pass.is_backward_ = is_backward; }
  static void forget(StagedPass& pass) { pass.moved_.clear(); }
  static std::set<uint64_t>& seen() { return pass().seen_; }
  static bool has_stages(const StagedPass& pass) { return pass.run_->size(stages) > 1; }

  // Calls `move` once for each tensor and stage, and keeps the result. After a write to the tensor,
  // makes a copy again. An alias needs no new move: it sees the write, and has its history.
  enum Result : uint8_t { copy, alias };
  template <class Move>
  static at::Tensor once(const at::Tensor& tensor, int64_t to, Result kind, const Move& move) {
    auto& [from, version, result] =
        pass().moved_[{tensor.unsafeGetTensorImpl(), to, is_recorded(tensor)}];
    if (!result.defined() || (kind == copy && version != version_of(tensor))) {
      result = move();
      from = tensor;
      version = version_of(tensor);
    }
    return result;
  }
};

}  // namespace sharding

namespace {

using Calls = sharding::StagedCalls;

// Whether the function itself computes a gradient (redco.grad), in its forward pass or where that
// runs again. Such a gradient stays on the stage that computes it, and can be differentiated.
bool is_inner_gradient() {
  if (Calls::is_backward() && !Recomputing::is_on()) return false;
  const auto* nodes = torch::autograd::get_current_graph_task_exec_info();
  const bool fills_leaves = nodes && nodes->empty();
  require(!fills_leaves || !Calls::is_scheduled(),
          "a gradient is computed inside of the loss_fn by Tensor:backward, which "
          "n_pipeline_stages = ",
          Calls::run()->size(stages), " does not support: use redco.grad or torch.autograd.grad");
  return !fills_leaves;
}

at::Tensor on_stage(const at::Tensor& tensor, int64_t to, const std::string& reader = {});

// Turns the gradient of a tensor that all stages have into the share that the stage of `gradient`
// adds. Returns nothing on other processes. In a pass that all stages run at the same point,
// returns the share on all processes.
at::Tensor as_part_of_stage(const at::Tensor& gradient) {
  ShardedTensorImpl* impl = sharded_impl(gradient);
  if (impl->gathered_view()) refresh(*impl);
  at::Tensor local = impl->local();
  if (!Calls::is_scheduled())
    local = laid_out(on_all_stages(local, *impl->mesh()), geometry_of(gradient));
  else if (impl->mesh()->is_absent())
    return {};
  return wrap(local, impl->placements(), impl->mesh()->of_run(), geometry_of(gradient));
}

// Returns the gradient on the stage on which `ctx` has put the tensor. Some gradients, such as
// zeros, LibTorch makes as plain tensors, which all processes have.
at::Tensor gradient_on_stage(AutogradContext* ctx, const at::Tensor& gradient) {
  return stage_of(gradient) ? gradient : seen_by_stage(gradient, kept(ctx, "stage"));
}

// Puts a tensor that all processes have on a stage.
class Seen : public torch::autograd::Function<Seen> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& tensor,
                            const std::shared_ptr<const Mesh>& stage) {
    ctx->set_materialize_grads(false);
    keep(ctx, "stage", stage);
    at::Tensor seen = seen_by_stage(tensor, stage);
    Calls::seen().insert(sharded_impl(seen)->memory_id());
    return seen;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    if (!gradients[0].defined() || is_inner_gradient()) return {gradients[0], {}};
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    return {as_part_of_stage(gradient_on_stage(ctx, gradients[0])), {}};
  }
};

// Puts a parameter at rest on the stage that has it.
class Staged : public torch::autograd::Function<Staged> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& parameter,
                            const std::shared_ptr<const Mesh>& stage) {
    ctx->set_materialize_grads(false);
    keep(ctx, "stage", stage);
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    ShardedTensorImpl* impl = sharded_impl(parameter);
    Placements placements = impl->placements();
    placements[stages] = {};
    at::Tensor local = impl->local();
    if (stage->is_absent()) {
      const Sizes sizes = local_sizes(parameter.sizes(), placements, *stage);
      local = absent_part(sizes, dense_geometry(sizes, parameter.strides()).strides,
                          parameter.scalar_type());
    }
    at::Tensor staged = wrap(alias_of(local), placements, stage, geometry_of(parameter));
    be_read_as(staged, parameter);
    return staged;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    if (!gradients[0].defined() || is_inner_gradient()) return {gradients[0], {}};
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    return {at_rest(gradient_on_stage(ctx, gradients[0])), {}};
  }

 private:
  static at::Tensor at_rest(const at::Tensor& gradient) {
    ShardedTensorImpl* impl = sharded_impl(gradient);
    const std::shared_ptr<const Mesh> run = impl->mesh()->of_run();
    if (impl->gathered_view()) refresh(*impl);
    Placements placements = impl->placements();
    placements[stages] = Placement::on_rank(*impl->mesh()->stage());
    const Geometry geometry = geometry_of(gradient);
    at::Tensor local = impl->local();
    if (!Calls::is_of_row(*impl->mesh()->stage())) return {};
    if (impl->mesh()->is_absent())
      local = at::empty(local_sizes(geometry.sizes, placements, *run),
                        local.options().device(device_of_values(*run)));
    at::Tensor result = wrap(local, placements, run, geometry);
    if (!impl->mesh()->is_absent()) sharded_impl(result)->share_memory_of(*impl);
    return result;
  }
};

// Moves a tensor from another stage. Backward sends its gradient back.
class Moved : public torch::autograd::Function<Moved> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& tensor, int64_t to) {
    require(
        !Calls::is_scheduled() || !Recomputing::is_on(),
        "a block, or a function given to redco.checkpoint, computes on tensors of two stages of "
        "a pipeline, and backward cannot run it again: compute what is of the earlier stage "
        "before it, or use recompute = \"none\" of the Trainer");
    ctx->set_materialize_grads(false);
    ctx->saved_data["from"] = *stage_of(tensor);
    return moved_to_stage(tensor, to, Calls::sends());
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    if (!gradients[0].defined()) return {{}, {}};
    const int64_t from = ctx->saved_data["from"].toInt();
    // In the forward pass of a schedule, stages do not wait for later ones.
    if (is_inner_gradient())
      return {Calls::is_scheduled() ? gradients[0] : on_stage(gradients[0], from), {}};
    if (stage_of(gradients[0])) return {moved_to_stage(gradients[0], from, Calls::sends()), {}};
    return {seen_by_stage(gradients[0], Calls::stage(from)), {}};
  }
};

// Replaces the tensors among the arguments, which are on top of the stack.
template <class Function>
void replace_tensors(Stack& stack, size_t n_arguments, const Function& function) {
  for (size_t i = stack.size() - n_arguments; i < stack.size(); ++i)
    map_tensors(stack[i], function);
}

// Copies a tensor to the processes of all stages.
class FromStage : public torch::autograd::Function<FromStage> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& tensor) {
    ctx->set_materialize_grads(false);
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    mesh::PausedLog paused;
    ShardedTensorImpl* impl = sharded_impl(tensor);
    if (impl->gathered_view()) refresh(*impl);
    keep(ctx, "stage", impl->mesh());
    const Geometry geometry = dense_geometry(tensor.sizes(), tensor.strides());
    return wrap(laid_out(on_all_stages(impl->local(), *impl->mesh()), geometry), impl->placements(),
                impl->mesh()->of_run(), geometry);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    if (!gradients[0].defined()) return {{}};
    const std::shared_ptr<const Mesh> stage = kept(ctx, "stage");
    if (is_inner_gradient()) return {on_stage(gradients[0], *stage->stage())};
    return {seen_by_stage(gradients[0], stage)};
  }
};

// Returns a parameter at rest on its stage, and any other tensor as it is.
at::Tensor staged(const at::Tensor& tensor) {
  const auto stage = resting_stage_of(tensor);
  if (!stage) return tensor;
  return Calls::once(tensor, *stage, Calls::alias,
                     [&] { return Staged::apply(tensor, Calls::stage(*stage)); });
}

// Throws Error in a gradient inside of a loss_fn that the later stage would compute for the earlier
// one, with copies of all that this has.
void check_is_of_one_stage(const at::Tensor& tensor, int64_t to, const std::string& reader) {
  const auto node = torch::autograd::get_current_node();
  require(!Calls::is_scheduled() || !node || Recomputing::is_on(),
          "a gradient is computed inside of the loss_fn of a function of two stages: in ",
          node ? node->name() : "", ", ", reader, " on ", name_of_stage(to, *Calls::run()),
          " reads a tensor of stage ", stage_of(tensor).value_or(0),
          ". Compute gradients of functions whose operators are on one stage, or use "
          "n_pipeline_stages = 1");
}

at::Tensor on_stage(const at::Tensor& tensor, int64_t to, const std::string& reader) {
  if (stage_of(tensor) == to) return tensor;
  if (stage_of(tensor))
    return Calls::once(tensor, to, Calls::copy, [&] {
      check_is_of_one_stage(tensor, to, reader);
      return Moved::apply(tensor, to);
    });
  // The call itself puts other tensors on the stage.
  if (!is_recorded(tensor)) return tensor;
  return Calls::once(tensor, to, Calls::alias,
                     [&] { return Seen::apply(tensor, Calls::stage(to)); });
}

// Moves the arguments to the last of their stages. If the only such arguments are parameters that
// all stages have, moves them to the stage of the previous call. Returns whether the call belongs
// to a stage.
bool bring_together(const std::string& name, Stack& stack, size_t n,
                    const std::vector<bool>& is_written) {
  std::optional<int64_t> last;
  bool is_of_shared_parameters = false;
  auto see = [&](const at::Tensor& tensor) {
    if (const auto stage = stage_of(tensor)) last = std::max(last.value_or(0), *stage);
    is_of_shared_parameters |= is_recorded(tensor);
    return tensor;
  };
  replace_tensors(stack, n, staged);
  replace_tensors(stack, n, see);
  if (!last && !is_of_shared_parameters) return false;
  Calls::current() = last.value_or(Calls::current());
  for (size_t i = 0; i < n; ++i) {
    if (is_written[i]) continue;  // put_on_stage checks written arguments
    map_tensors(stack[stack.size() - n + i],
                [&](const at::Tensor& tensor) { return on_stage(tensor, Calls::current(), name); });
  }
  return true;
}

// Whether backward runs. Gradients that the function itself computes belong to its forward pass.
bool is_of_backward() {
  return torch::autograd::get_current_node() && Calls::is_backward() && !Recomputing::is_on();
}

// Transforms such as vmap cannot record a move: put_on_stage checks their calls.
bool is_left_out() { return is_of_backward() || at::functorch::maybeCurrentDynamicLayer(); }

}  // namespace

at::Tensor from_stage(const at::Tensor& tensor) {
  const at::Tensor given = on_own_stage(tensor);
  return stage_of(given) ? FromStage::apply(given) : given;
}

at::Tensor first_gradient_of(const at::Tensor& value, const at::Tensor& gradient) {
  return stage_of(value) && !stage_of(gradient)
             ? seen_by_stage(gradient, sharded_impl(value)->mesh())
             : gradient;
}

StageOfOthers::StageOfOthers(int64_t stage) : pass_(running), outer_(now()) {
  if (pass_ != nullptr) Calls::current() = stage;
}

StageOfOthers::~StageOfOthers() {
  if (pass_ != nullptr && pass_ == running) Calls::current() = outer_;
}

int64_t StageOfOthers::now() { return running != nullptr ? Calls::current() : 0; }

StagedPass::StagedPass(const std::shared_ptr<const Mesh>& run, Order order,
                       std::optional<int64_t> computing)
    : run_(run), order_(order), computing_(computing) {}

StagedPass::~StagedPass() = default;

void StagedPass::note_draw(const at::Generator& generator) {
  if (running != nullptr) Calls::note_draw(generator);
}

void StagedPass::wait() {
  for (const auto& send : sends_) send->wait();
  sends_.clear();
}

struct StagedPass::Running::Scope final : OperatorInterceptor {
  Scope(StagedPass& pass, bool is_backward) : outer(std::exchange(running, &pass)) {
    Calls::set_backward(pass, is_backward);
  }
  ~Scope() override {
    if (Calls::is_backward()) Calls::forget(*running);  // the pass is not computed again
    running = outer;
  }
  bool before(const c10::OperatorHandle& op, Stack& stack) override {
    if (is_left_out()) return false;
    const size_t n = op.schema().arguments().size();
    if (!bring_together(op.schema().name(), stack, n, known_operator(op).is_written)) return false;
    Calls::note_call(op, stack);
    return true;
  }
  void before_function(std::vector<at::Tensor>& tensors) override {
    if (is_left_out()) return;
    Stack stack(tensors.begin(), tensors.end());
    bring_together("a fused operator", stack, stack.size(), std::vector<bool>(stack.size()));
    for (size_t i = 0; i < tensors.size(); ++i) tensors[i] = stack[i].toTensor();
  }

  StagedPass* outer;
  // Pauses the log, because each stage makes other calls.
  mesh::PausedLog paused;
};

StagedPass::Running::Running(StagedPass& pass, bool is_backward) {
  if (Calls::has_stages(pass)) scope_ = std::make_unique<Scope>(pass, is_backward);
}

StagedPass::Running::~Running() = default;

namespace sharding {

bool is_of_all_stages(const ShardedTensorImpl& impl) {
  return running != nullptr && Calls::seen().contains(impl.memory_id());
}

at::Tensor on_own_stage(const at::Tensor& tensor) {
  if (running == nullptr || !resting_stage_of(tensor) || is_of_backward()) return tensor;
  require(!is_left_out(), "a parameter of stage ", *resting_stage_of(tensor),
          in_transform(*Calls::run()));
  return staged(tensor);
}

at::Tensor moved_within_call(const at::Tensor& tensor, int64_t to) {
  require(!Calls::is_scheduled(), "an operator has arguments of several stages of a pipeline. ",
          "Please report this");
  return moved_to_stage(tensor, to, Calls::sends());
}

void check_values_are_readable(const Mesh& stage) {
  require(!Calls::is_scheduled(), "a value is read that only ",
          name_of_stage(*stage.stage(), *stage.of_run()),
          " has, while the stages are at different micro-batches: return it from loss_fn as a "
          "metric, or compute with tensors (torch.where, a product with a mask)");
}

void check_stages_are_together(const Call& call) {
  if (!Calls::is_scheduled() || Calls::is_backward()) return;
  for (const TensorArgument& argument : call.tensors)
    require(!resting_stage_of(argument.tensor), call.op.name, ": a parameter of stage ",
            resting_stage_of(argument.tensor).value_or(0), in_transform(*call.mesh));
}

std::string in_transform(const Mesh& mesh) {
  return " is read inside of a transform such as vmap, which n_pipeline_stages = " +
         std::to_string(mesh.of_run()->size(stages)) + " does not support";
}

}  // namespace sharding

}  // namespace redco
