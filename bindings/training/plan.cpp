// Trainer:plan, and the script of `redco-lua plan`.

#include "plan.h"

#include "state/arguments.h"
#include "state/context.h"
#include "state/object.h"
#include "state/plain_tree.h"
#include "state/values.h"

#include <redco/error.h>
#include <redco/json.h>
#include <redco/plan.h>

#include <algorithm>
#include <string>
#include <utility>

namespace redco::lua {

namespace {

// The memory of a GPU, for which Lua's garbage is collected as in a run on it; 0 for CPUs.
int64_t gpu_memory(const ClusterSpec& cluster) {
  DeviceFacts device = cluster.device();
  return device.kind == DeviceFacts::cpu ? 0 : device.memory;
}

// While it exists, Lua's garbage is collected as in a run on this cluster.
class CollectsAsOn {
 public:
  CollectsAsOn(lua_State* L, const ClusterSpec& cluster)
      : debt_(context(L).tensor_debt), outer_(debt_) {
    debt_ = {};
    debt_.planned_gpu = gpu_memory(cluster);
  }
  ~CollectsAsOn() { debt_ = outer_; }
  CollectsAsOn(const CollectsAsOn&) = delete;
  CollectsAsOn& operator=(const CollectsAsOn&) = delete;

 private:
  Context::TensorDebt& debt_;
  Context::TensorDebt outer_;
};

// What `redco-lua plan` was asked for, and found.
struct Planned {
  Planned(ClusterSpec spec, const PlanOptions& given) : cluster(std::move(spec)), options(given) {}

  PlanMode mode;
  ClusterSpec cluster;
  PlanOptions options;
  std::optional<Tree> result;
};
thread_local std::unique_ptr<Planned> planned;

// A file of a cluster, or a text such as "2x H100-80G:8, ib 400G"; none is this machine.
ClusterSpec cluster_of(const std::optional<std::string>& given, std::optional<int64_t> n_devices) {
  if (!given) return ClusterSpec::here(n_devices.value_or(1));
  ClusterSpec cluster =
      given->ends_with(".toml") ? ClusterSpec::read(*given) : ClusterSpec::from_text(*given);
  return n_devices ? cluster.with_devices(*n_devices) : cluster;
}

void read_search(NamedArguments& args, PlanOptions& options) {
  options.max_model_shards = args.optional<int64_t>("max_model_shards");
  options.margin = args.get<double>("margin", options.margin);
  options.timeout = args.get<double>("timeout", options.timeout);
  options.n_layouts = args.get<int64_t>("n_layouts", options.n_layouts);
  require(options.margin >= 0 && options.margin < 1, args.function(), ": margin = ", options.margin,
          " must be from 0 up to 1");
}

Tree list_of(const std::vector<std::string>& texts) {
  Tree::List list;
  for (const std::string& text : texts) list.emplace_back(text);
  return list;
}

Tree tree_of(const Group::Counters& counters) {
  Tree::Dict kinds;
  for (uint8_t kind = 0; kind < Group::n_kinds; ++kind)
    if (counters[kind].count > 0)
      kinds[Group::name(Group::Kind(kind))] =
          Tree::Dict{{"count", counters[kind].count}, {"bytes", counters[kind].bytes}};
  return kinds;
}

Tree tree_of(const PlannedLayout& layout) {
  Tree::Dict tree{{"n_copies", layout.n_copies},
                  {"n_model_shards", layout.n_model_shards},
                  {"zero", layout.zero},
                  {"sequence_parallel", layout.sequence_parallel},
                  {"per_device_batch_size", layout.per_device_batch_size},
                  {"accumulate_grad_batches", layout.n_accumulated},
                  {"is_asked", layout.is_asked},
                  {"is_planned", layout.is_planned},
                  {"fits", layout.fits},
                  {"why", layout.why},
                  {"states", layout.states},
                  {"notes", list_of(layout.notes)}};
  if (!layout.is_planned) return tree;
  Tree::Dict memory{{"allocated", layout.allocated},
                    {"fragmentation", layout.fragmentation},
                    {"reserved", layout.reserved},
                    {"total", layout.total}};
  for (const auto& [kind, bytes] : layout.memory) memory[kind] = bytes;
  tree["memory"] = std::move(memory);
  Tree::List largest;
  for (const PlannedTensor& tensor : layout.largest)
    largest.push_back(Tree::Dict{{"bytes", tensor.bytes},
                                 {"kind", tensor.kind},
                                 {"operator", tensor.operator_name},
                                 {"line", tensor.line},
                                 {"is_backward", tensor.is_backward}});
  tree["largest"] = std::move(largest);
  Tree::Dict groups;
  for (const auto& [group, counters] : layout.collectives) groups[group] = tree_of(counters);
  tree["collectives"] = std::move(groups);
  tree["seconds"] = Tree::Dict{{"total", layout.seconds}, {"exposed", layout.exposed_seconds}};
  tree["mfu"] = layout.mfu;
  return tree;
}

Tree tree_of(const StepPlan& plan, const ClusterSpec& cluster) {
  Tree::List layouts;
  for (const PlannedLayout& layout : plan.layouts) layouts.push_back(tree_of(layout));
  return Tree::Dict{{"schema", int64_t{1}},
                    {"cluster", cluster.text()},
                    {"n_devices", cluster.n_devices()},
                    {"device_memory", plan.memory},
                    {"n_parameters", plan.n_parameters},
                    {"global_batch_size", plan.global_batch_size},
                    {"layouts", std::move(layouts)},
                    {"states", plan.states},
                    {"least_devices", plan.least_devices},
                    {"notes", list_of(plan.notes)}};
}

TrainerOptions options_of(const LuaTrainer& trainer) {
  TrainerOptions options = *trainer.options;
  options.params = trainer.trainer->state().params;
  return options;
}

constexpr const char* ended = "plan: the step is planned";

int start(lua_State* L) {
  NamedArguments args(L, 1, "redco.plan");
  auto cluster = args.optional<std::string>("cluster");
  auto n_devices = args.optional<int64_t>("n_devices");
  PlanOptions options;
  read_search(args, options);
  args.finish();
  ClusterSpec spec = cluster_of(cluster, n_devices);
  context(L).tensor_debt = {};
  context(L).tensor_debt.planned_gpu = gpu_memory(spec);
  planned = std::make_unique<Planned>(std::move(spec), options);
  return 0;
}

// Returns the plan and its JSON text; nil if the script did not begin to train.
int finish(lua_State* L) {
  std::optional<Tree> result = planned ? planned->result : std::nullopt;
  planned.reset();
  context(L).tensor_debt = {};
  if (!result) return 0;
  push_tree(L, *result);
  lua_pushstring(L, json_from_tree("plan", *result, 2).c_str());
  return 2;
}

int is_planning_of(lua_State* L) {
  lua_pushboolean(L, is_planning());
  return 1;
}

}  // namespace

bool is_planning() { return planned != nullptr; }

std::shared_ptr<Deployer> make_planned_deployer(DeployerOptions options) {
  planned->options.n_model_shards = options.n_model_shards;
  planned->options.zero = options.zero;
  planned->options.sequence_parallel = options.sequence_parallel;
  return planned->mode.make_deployer(std::move(options));
}

void plan_and_end(const LuaTrainer& trainer, const Dataset& examples,
                  std::optional<int64_t> per_device_batch_size,
                  std::optional<int64_t> global_batch_size) {
  if (!planned->result) {
    int64_t n_copies = planned->cluster.n_devices() / planned->options.n_model_shards;
    planned->options.per_device_batch_size = per_device_batch_size.value_or(
        std::max<int64_t>(1, global_batch_size.value_or(1) / std::max<int64_t>(1, n_copies)));
    planned->options.global_batch_size = global_batch_size;
    StepPlan result = plan_step(options_of(trainer), examples, planned->cluster, planned->options);
    planned->result = tree_of(result, planned->cluster);
  }
  fail(ended);
}

const char* const plan_text =
    R"text(plan(self, {train_examples, per_device_batch_size, global_batch_size = nil, cluster = nil,
  n_devices = nil, max_model_shards = nil, margin = 0.06, timeout = 60, n_layouts = 8}) -> table
Plans how an optimizer step runs on a cluster, without the cluster: for each layout what a device
holds, what it sends and how long it takes. Nothing is trained. The result has `layouts`, a list
with the best first, `cluster`, `n_devices`, `device_memory`, `n_parameters`, `global_batch_size`
and `notes`; if none fits, also the bytes of all `states` and the `least_devices` that could hold
them. A layout has n_copies, n_model_shards, zero, sequence_parallel, per_device_batch_size,
accumulate_grad_batches, `is_asked` (it is that of the Deployer), `fits`, `why` it does not fit,
`memory` (bytes by kind, when most are in use; `allocated` is their sum, `total` adds fragmentation
and what is reserved), `collectives` (a `count` and `bytes` that a device sends, by group and kind),
`seconds` (`total` and `exposed`, in which a device only communicates), `mfu` and `largest`, the ten
largest tensors of that time. A layout whose states alone do not fit has `is_planned = false`, and
no memory, collectives and times.
  train_examples: a list or a data set, of which one batch is used
  cluster: such as "2x H100-80G:8, ib 400G", or the name of a .toml file; the default is this
    machine
  n_devices: the number of devices, of the kind that `cluster` has
  max_model_shards: the most model shards to try; the default is the devices of a host
  margin: the part of a device's memory that must stay free
  timeout: seconds after which no further layout is tried
  n_layouts: the most layouts to return, besides the one that is asked for)text";

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
  options.zero = deployer.zero();
  options.n_model_shards = deployer.mesh()->size(Mesh::model);
  options.sequence_parallel = deployer.mesh()->sequence_parallel();
  ClusterSpec spec = cluster_of(cluster, n_devices);
  CollectsAsOn collects(L, spec);
  push_tree(L, tree_of(plan_step(options_of(*object), examples, spec, options), spec));
  return 1;
}

void add_plan(lua_State* L) {
  for (const auto& [name, function] : {std::pair<const char*, lua_CFunction>{"start_plan", start},
                                       {"finish_plan", finish},
                                       {"is_planning", is_planning_of}}) {
    lua_pushcfunction(L, function);
    lua_setfield(L, -2, name);
  }
}

}  // namespace redco::lua
