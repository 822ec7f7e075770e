// Trainer:plan, and the script of `redco-lua plan`.

#include "plan.h"

#include "callbacks.h"
#include "plan_tree.h"
#include "state/arguments.h"
#include "state/context.h"
#include "state/object.h"
#include "state/plain_tree.h"
#include "state/values.h"

#include <redco/calibration.h>
#include <redco/error.h>
#include <redco/json.h>
#include <redco/plan.h>
#include <redco/plan_scaling.h>

#include <ATen/Context.h>

#include <algorithm>
#include <string>
#include <utility>

namespace redco::lua {

namespace {

// While this object exists, Lua's garbage is collected as in a run on GPUs of this cluster; in a
// plan for CPUs, before it exceeds 1 % of the tensors. The constructor collects all earlier
// garbage, so that plans do not depend on it.
class CollectsAsOn {
 public:
  CollectsAsOn(lua_State* L, const DeviceFacts& device)
      : debt_(context(L).tensor_debt), outer_(debt_) {
    constexpr int64_t least_garbage = 24 << 20;
    const bool is_cpu = device.kind == DeviceFacts::cpu;
    auto in_use = [] { return planned_bytes().value_or(0); };
    // Up to a twentieth of this size may be garbage. If a step does not fit on the GPU, each tensor
    // could be larger than that.
    auto size = [=, memory = device.memory] {
      return is_cpu ? std::max(20 * least_garbage, in_use() / 5) : std::max(memory, in_use());
    };
    debt_ = {};
    debt_.planned_gpu = {size, in_use};
    lua_gc(L, LUA_GCCOLLECT, 0);
  }
  ~CollectsAsOn() { debt_ = outer_; }
  CollectsAsOn(const CollectsAsOn&) = delete;
  CollectsAsOn& operator=(const CollectsAsOn&) = delete;

 private:
  Context::TensorDebt& debt_;
  Context::TensorDebt outer_;
};

// The options of a call of `redco-lua plan`, and the plan that it found.
struct Planned {
  Planned(ClusterSpec spec, const PlanOptions& given) : cluster(std::move(spec)), options(given) {}

  PlanMode mode;
  ClusterSpec cluster;
  PlanOptions options;
  std::vector<int64_t> numbers;  // of devices, for a curve
  Scaling scaling = Scaling::weak;
  int64_t n_passed = 0;           // the trainings to skip
  bool keeps_per_device = false;  // the examples of a device, rather than those of a step
  std::optional<Tree> result;
};
thread_local std::unique_ptr<Planned> planned;

// A file of a cluster, or a text such as "2x H100-80G:8, ib 400G"; none is this machine.
ClusterSpec cluster_of(const std::optional<std::string>& given, std::optional<int64_t> n_devices) {
  if (!given) return plan::here_calibrated(n_devices.value_or(1));
  ClusterSpec cluster =
      given->ends_with(".toml") ? ClusterSpec::read(*given) : ClusterSpec::from_text(*given);
  return n_devices ? cluster.with_devices(*n_devices) : cluster;
}

void read_search(NamedArguments& args, PlanOptions& options) {
  options.max_model_shards = args.optional<int64_t>("max_model_shards");
  options.margin = args.get<double>("margin", options.margin);
  options.timeout = args.get<double>("timeout", options.timeout);
  options.n_layouts = args.get<int64_t>("n_layouts", options.n_layouts);
  options.objective = parse_objective(args.get<std::string>("objective", "time"));
  parse_allowed(args.get<std::string>("allow", "recompute"), options);
  require(options.margin >= 0 && options.margin < 1, args.function(), ": margin = ", options.margin,
          " must be from 0 up to 1");
}

TrainerOptions options_of(const LuaTrainer& trainer) {
  TrainerOptions options = *trainer.options;
  options.params = trainer.trainer->state().params;
  return options;
}

constexpr const char* end_of_plan = "plan: the step is planned";

int start_plan(lua_State* L) {
  NamedArguments args(L, 1, "redco.plan");
  auto cluster = args.optional<std::string>("cluster");
  auto devices = args.optional<std::string>("devices");
  auto scaling = args.get<std::string>("scaling", "weak");
  auto fit = args.get<int64_t>("fit", 1);
  auto keep = args.get<std::string>("keep", "global");
  PlanOptions options;
  options.global_batch_size = args.optional<int64_t>("global_batch_size");
  options.has_timelines = args.get<bool>("has_timelines", false);
  read_search(args, options);
  args.finish();
  std::vector<int64_t> numbers;
  if (devices) numbers = parse_device_numbers(*devices);
  std::optional<int64_t> n_devices;
  if (numbers.size() == 1) n_devices = numbers[0];
  ClusterSpec spec = cluster_of(cluster, n_devices);
  check_prices(options.objective, spec);
  planned = std::make_unique<Planned>(std::move(spec), options);
  if (numbers.size() > 1) planned->numbers = std::move(numbers);
  planned->scaling = scaling == "strong" ? Scaling::strong : Scaling::weak;
  planned->n_passed = fit - 1;
  planned->keeps_per_device = keep == "per-device";
  return 0;
}

// Returns the plan and its JSON text; nil if the script did not begin to train.
int finish(lua_State* L) {
  std::optional<Tree> result = planned ? planned->result : std::nullopt;
  planned.reset();
  if (!result) return 0;
  push_tree(L, *result);
  lua_pushstring(L, json_from_tree("plan", *result, 2).c_str());
  return 2;
}

// Measures the devices and links of this run; process 0 returns the text of a cluster.toml. The
// argument is CalibrationOptions::seconds.
int calibrate(lua_State* L) {
  plan::CalibrationOptions how;
  how.seconds = luaL_optnumber(L, 1, how.seconds);
  MeshOptions options{.processes = find_processes()};
  if (at::hasCUDA()) options.device_type = c10::kCUDA;
  ClusterSpec measured = plan::calibrate(*Mesh::make(options), how);
  if (options.processes.rank != 0) return 0;
  lua_pushstring(L, measured.to_toml().c_str());
  lua_pushstring(L, plan::calibration_file().c_str());
  return 2;
}

int is_planning_of(lua_State* L) {
  lua_pushboolean(L, PlanMode::is_on());
  return 1;
}

}  // namespace

std::shared_ptr<Deployer> make_planned_deployer(DeployerOptions options) {
  planned->options.n_model_shards = options.n_model_shards;
  planned->options.n_context_shards = options.n_context_shards;
  planned->options.n_expert_shards = options.n_expert_shards;
  planned->options.n_pipeline_stages = options.n_pipeline_stages;
  planned->options.n_chunks_per_stage = options.n_chunks_per_stage;
  planned->options.zero = options.zero;
  planned->options.zero_group = options.zero_group;
  planned->options.sequence_parallel = options.sequence_parallel;
  options.choice = {};  // the plan shows all
  return planned->mode.make_deployer(std::move(options));
}

void plan_and_end(lua_State* L, const LuaTrainer& trainer, const Dataset& examples,
                  std::optional<int64_t> per_device_batch_size,
                  std::optional<int64_t> global_batch_size) {
  Planned& now = *planned;
  if (now.result) fail(end_of_plan);
  if (now.n_passed > 0) {
    --now.n_passed;
    return;
  }
  PlanOptions& options = now.options;
  int64_t n = now.numbers.empty() ? now.cluster.n_devices() : now.numbers.front();
  int64_t n_copies = std::max<int64_t>(
      1, n / (options.n_model_shards * options.n_context_shards * options.n_pipeline_stages));
  if (!options.global_batch_size && !(now.keeps_per_device && per_device_batch_size))
    options.global_batch_size = global_batch_size;
  options.per_device_batch_size = per_device_batch_size.value_or(
      std::max<int64_t>(1, options.global_batch_size.value_or(1) / n_copies));
  CollectsAsOn collects(L, now.cluster.device());
  if (now.numbers.empty())
    now.result =
        tree_of(plan_step(options_of(trainer), examples, now.cluster, options), now.cluster);
  else
    now.result = tree_of(
        plan_scaling(options_of(trainer), examples, now.cluster, now.numbers, now.scaling, options),
        now.scaling, now.cluster);
  fail(end_of_plan);
}

BatchSizes with_layout(lua_State* L, LuaTrainer& trainer, const Dataset& examples,
                       const BatchSizes& given) {
  const std::shared_ptr<Deployer>& deployer = trainer.trainer->deployer();
  if (deployer->has_layout()) return given;
  TrainerOptions of_trainer = options_of(trainer);
  require(of_trainer.accumulate_grad_batches.value_or(1) == 1,
          "Trainer: accumulate_grad_batches depends on the layout, which is \"auto\": give fit "
          "global_batch_size instead");
  int64_t n = deployer->mesh()->world().size();
  PlanOptions options;
  options.global_batch_size = given.global;
  options.per_device_batch_size =
      given.per_device.value_or(std::max<int64_t>(1, given.global.value_or(1) / n));
  MathRandom math_random(L);
  CollectsAsOn collects(L, {.kind = DeviceFacts::cpu});  // more often than a step on a GPU would
  PlannedLayout layout = choose_layout(of_trainer, examples, options);
  context(L).mesh = deployer->mesh();
  trainer.trainer->set_recompute(layout.recompute);
  return {layout.per_device_batch_size,
          layout.per_device_batch_size * layout.n_copies * layout.n_accumulated};
}

const char* const plan_text =
    R"text(plan(self, {train_examples, per_device_batch_size, global_batch_size = nil, cluster = nil,
  n_devices = nil, max_model_shards = nil, margin = 0.06, timeout = 60, n_layouts = 8,
  objective = "time", allow = "recompute"}) -> table
Plans how an optimizer step runs on a cluster, without the cluster: for each layout what a device
holds, what it sends and how long it takes. Nothing is trained. The result has `layouts`, a list
with the best first, `cluster`, `n_devices`, `device_memory`, `n_parameters`, `global_batch_size`
and `notes`; if none fits, also `why`, the bytes of all `states` and the `least_devices` that could
hold them. A layout has n_copies, n_model_shards, zero, zero_group, sequence_parallel, recompute,
compute_dtype, per_device_batch_size, accumulate_grad_batches, `is_asked` (it is that of the
Deployer), `is_least` (none needs less memory, or none without recomputation), `fits`, `why` it does not fit,
`memory` (bytes by kind, when most are in use; `allocated` is their sum, `total` adds fragmentation
and what is reserved), `collectives` (a `count` and `bytes` that a device sends, by group and kind),
`seconds` (`total`; `exposed`, in which a device only communicates; `starting`, in which a GPU waits
for its host to start operators), `mfu`, the `price` of a step if the cluster has prices, and
`largest`, the ten largest tensors of that time. A layout whose states alone do not fit has
`is_planned = false`, and no memory, collectives and times.
  train_examples: a list or a data set, of which one batch is used
  cluster: such as "2x H100-80G:8, ib 400G", or the name of a .toml file; the default is this
    machine
  n_devices: the number of devices, of the kind that `cluster` has
  max_model_shards: the most model shards to try; the default is the devices of a host
  margin: the part of a device's memory that must stay free
  timeout: seconds after which no further layout is tried
  n_layouts: the most layouts to return, besides the one that is asked for and the least
  objective: what the best layout has least of: "time", "memory" or "cost"
  allow: what layouts may have otherwise than the Trainer: "recompute", blocks that are computed
    again; "dtype", compute_dtype = "bfloat16"; "recompute,dtype"; or "none")text";

int plan(lua_State* L) {
  auto object = check_object<LuaTrainer>(L, 1, "Trainer:plan");
  NamedArguments args(L, 2, "Trainer:plan");
  args.push_required("train_examples");
  Dataset examples =
      make_dataset(Examples(L, -1, args.function() + ": train_examples"), object->collator);
  PlanOptions options;
  options.per_device_batch_size = args.required<int64_t>("per_device_batch_size");
  options.global_batch_size = args.optional<int64_t>("global_batch_size");
  auto cluster = args.optional<std::string>("cluster");
  auto n_devices = args.optional<int64_t>("n_devices");
  read_search(args, options);
  args.finish();
  const Deployer& deployer = *object->trainer->deployer();
  deployer.require_layout("Trainer:plan");
  options.zero = deployer.zero();
  const ProcessLayout layout = deployer.layout();
  options.n_model_shards = layout.n_model_shards;
  options.n_context_shards = layout.n_context_shards;
  options.n_expert_shards = layout.n_expert_shards;
  options.n_pipeline_stages = layout.n_pipeline_stages;
  options.n_chunks_per_stage = layout.n_chunks_per_stage;
  options.zero_group = layout.zero_group;
  options.sequence_parallel = deployer.mesh()->sequence_parallel();
  ClusterSpec spec = cluster_of(cluster, n_devices);
  CollectsAsOn collects(L, spec.device());
  push_tree(L, tree_of(plan_step(options_of(*object), examples, spec, options), spec));
  return 1;
}

void add_plan(lua_State* L) {
  for (const auto& [name, function] :
       {std::pair<const char*, lua_CFunction>{"start_plan", start_plan},
        {"finish_plan", finish},
        {"calibrate", calibrate},
        {"is_planning", is_planning_of}}) {
    lua_pushcfunction(L, function);
    lua_setfield(L, -2, name);
  }
}

}  // namespace redco::lua
