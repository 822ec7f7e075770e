// The Lua class redco.Deployer.
#include <redco/cluster.h>
#include <redco/deployer.h>
#include <redco/plan.h>

#include "callbacks.h"
#include "check.h"
#include "deployer_methods.h"
#include "optim.h"
#include "plan.h"
#include "reported_runs.h"
#include "state/arguments.h"
#include "state/object.h"
#include "state/tensor.h"
#include "state/values.h"
#include "torch/sharding.h"
#include "training_objects.h"

#include <c10/util/ScopeExit.h>

#include <sstream>
#include <utility>
#include <vector>

namespace redco::lua {

std::string LuaDeployer::described() const {
  const Mesh& mesh = *deployer->mesh();
  std::ostringstream text;
  text << "seed = " << seed << ", n_processes = " << mesh.world().size();
  if (!deployer->has_layout()) text << ", layout = \"auto\"";
  for (auto [role, name] : {std::pair(Mesh::model, "n_model_shards"),
                            {Mesh::context, "n_context_shards"},
                            {Mesh::expert, "n_expert_shards"},
                            {Mesh::pipeline, "n_pipeline_stages"}})
    if (int64_t n = mesh.size(role); n > 1) text << ", " << name << " = " << n;
  if (int64_t n = mesh.n_chunks_per_stage(); n > 1) text << ", n_chunks_per_stage = " << n;
  if (deployer->zero() > 0) text << ", zero = " << deployer->zero();
  text << ", device = \"" << mesh.device() << "\"";
  if (!deployer->workdir().empty()) text << ", workdir = \"" << deployer->workdir() << "\"";
  return text.str();
}

std::shared_ptr<Deployer> check_deployer(lua_State* L) {
  return check_object<LuaDeployer>(L, 1, "Deployer method")->deployer;
}

namespace {

// Reads zero_group: a number of processes or "host".
int64_t check_zero_group(NamedArguments& args) {
  lua_State* L = args.state();
  args.push("zero_group");
  auto n = test_integer(L, lua_gettop(L));
  bool is_host = lua_type(L, -1) == LUA_TSTRING && std::string(lua_tostring(L, -1)) == "host";
  require(lua_isnil(L, -1) || is_host || n.value_or(0) > 0,
          "redco.Deployer: zero_group: expected a number of processes or \"host\", got ",
          described(L, lua_gettop(L)));
  lua_pop(L, 1);
  return is_host ? zero_group_of_host : n.value_or(zero_group_of_all);
}

// Whether an option is "auto".
bool is_auto(NamedArguments& args, const char* name) {
  lua_State* L = args.state();
  return balanced(L, [&] {
    args.push(name);
    return lua_type(L, -1) == LUA_TSTRING && std::string(lua_tostring(L, -1)) == "auto";
  });
}

// Reads `memory`: a number of bytes or a text such as "70 GiB".
std::optional<int64_t> check_memory(NamedArguments& args) {
  lua_State* L = args.state();
  return balanced(L, [&]() -> std::optional<int64_t> {
    args.push("memory");
    if (lua_isnil(L, -1)) return std::nullopt;
    if (lua_type(L, -1) == LUA_TSTRING)
      return parse_bytes(lua_tostring(L, -1), "redco.Deployer: memory");
    auto bytes = test_integer(L, lua_gettop(L));
    require(bytes.value_or(0) > 0,
            "redco.Deployer: memory: expected bytes or a text such as \"70 GiB\", got ",
            described(L, lua_gettop(L)));
    return bytes;
  });
}

int make_deployer(lua_State* L) {
  NamedArguments args(L, 1, "redco.Deployer");
  DeployerOptions options;
  args.refuse({"jax_seed"}, "it is called seed here");
  options.seed = args.required<int64_t>("seed");
  LayoutChoice& choice = options.choice;
  choice = {is_auto(args, "n_model_shards"), is_auto(args, "zero"),
            is_auto(args, "sequence_parallel"), check_memory(args)};
  require(!choice.memory || !choice.is_empty(),
          "redco.Deployer: memory is for n_model_shards, zero or sequence_parallel = \"auto\"");
  if (!choice.n_model_shards) options.n_model_shards = args.get<int64_t>("n_model_shards", 1);
  options.n_context_shards = args.get<int64_t>("n_context_shards", 1);
  options.n_expert_shards = args.get<int64_t>("n_expert_shards", 1);
  options.n_pipeline_stages = args.get<int64_t>("n_pipeline_stages", 1);
  options.n_chunks_per_stage = args.get<int64_t>("n_chunks_per_stage", 1);
  if (!choice.zero) options.zero = args.get<int64_t>("zero", 0);
  options.zero_min_size = args.get<int64_t>("zero_min_size", options.zero_min_size);
  options.zero_group = check_zero_group(args);
  if (!choice.sequence_parallel)
    options.sequence_parallel = args.get<bool>("sequence_parallel", false);
  if (auto device = args.optional<std::string>("device")) {
    require(*device == "cpu" || *device == "cuda", "redco.Deployer: device = \"", *device,
            "\" is not \"cpu\" or \"cuda\"; each process uses the GPU with its local number");
    options.device = *device == "cpu" ? c10::kCPU : c10::kCUDA;
  }
  options.verbose = args.get<bool>("verbose", true);
  options.workdir = args.get<std::string>("workdir", "");
  options.log_all_processes = args.get<bool>("log_all_processes", false);
  options.run_tensorboard = args.get<bool>("run_tensorboard", false);
  options.console = context(L).console;
  options.processes.n_processes = args.optional<int64_t>("n_processes");
  options.processes.process_id = args.optional<int64_t>("process_id");
  options.processes.host0_address = args.optional<std::string>("host0_address");
  options.processes.host0_port = args.optional<int64_t>("host0_port");
  options.collective_timeout = args.get<double>("collective_timeout", options.collective_timeout);
  args.refuse({"n_local_devices"}, "each process has one device: redco-lua --nproc N starts N");
  args.refuse({"wandb_init_kwargs"},
              "there is no client for that service; metrics.jsonl is written");
  args.finish();
  if (is_checking(L)) set_options_of_checked(options);
  int64_t seed = options.seed;
  auto deployer = PlanMode::is_on() ? make_planned_deployer(std::move(options))
                                    : std::make_shared<Deployer>(std::move(options));
  context(L).mesh = deployer->mesh();
  deployer->set_config(context(L).config);
  if (const auto& runs = context(L).reported_runs) runs->add(deployer->mesh());
  push_object(L, std::make_shared<LuaDeployer>(LuaDeployer{std::move(deployer), seed}));
  return 1;
}

int gen_rng(lua_State* L) {
  push_generator(L, check_deployer(L)->gen_rng());
  return 1;
}

int get_lr_schedule_fn(lua_State* L) {
  auto deployer = check_deployer(L);
  NamedArguments args(L, 2, "Deployer:get_lr_schedule_fn");
  LrScheduleOptions options;
  options.train_size = args.required<int64_t>("train_size");
  options.per_device_batch_size = args.required<int64_t>("per_device_batch_size");
  options.n_epochs = args.required<int64_t>("n_epochs");
  options.learning_rate = args.required<double>("learning_rate");
  options.global_batch_size = args.optional<int64_t>("global_batch_size");
  options.accumulate_grad_batches = args.optional<int64_t>("accumulate_grad_batches");
  options.schedule_type = args.get<std::string>("schedule_type", options.schedule_type);
  options.warmup_ratio = args.get<double>("warmup_ratio", options.warmup_ratio);
  options.warmup_steps = args.optional<int64_t>("warmup_steps");
  options.init_learning_rate = args.get<double>("init_learning_rate", options.init_learning_rate);
  options.end_learning_rate = args.get<double>("end_learning_rate", options.end_learning_rate);
  args.finish();
  push_schedule(L, deployer->get_lr_schedule_fn(options));
  return 1;
}

int get_accumulate_grad_batches(lua_State* L) {
  auto deployer = check_deployer(L);
  NamedArguments args(L, 2, "Deployer:get_accumulate_grad_batches");
  int64_t global_batch_size = args.required<int64_t>("global_batch_size");
  int64_t per_device_batch_size = args.required<int64_t>("per_device_batch_size");
  args.finish();
  push_integer(L, deployer->get_accumulate_grad_batches(global_batch_size, per_device_batch_size));
  return 1;
}

int get_local_global_micro_batch_size(lua_State* L) {
  auto deployer = check_deployer(L);
  NamedArguments args(L, 2, "Deployer:get_local_global_micro_batch_size");
  int64_t per_device_batch_size = args.required<int64_t>("per_device_batch_size");
  args.finish();
  auto [local, global] = deployer->get_local_global_micro_batch_size(per_device_batch_size);
  push_integer(L, local);
  push_integer(L, global);
  return 2;
}

int get_sharding_rules(lua_State* L) {
  auto deployer = check_deployer(L);
  require(lua_istable(L, 2) && lua_isfunction(L, 3),
          "Deployer:get_sharding_rules: expected params, a table of tensors, and forward, a "
          "function of such params; got ",
          described(L, 2), " and ", described(L, 3));
  std::vector<ShardingRule> rules;
  if (!lua_isnoneornil(L, 4))
    rules = check_sharding_rules(L, 4, "Deployer:get_sharding_rules: rules");
  int64_t n_model_shards = lua_isnoneornil(L, 5)
                               ? deployer->mesh()->size(Mesh::model)
                               : check_integer(L, 5, "Deployer:get_sharding_rules: n_model_shards");
  Ref forward(L, 3);
  const auto traced = [&](const Tree& params) {
    lua_State* state = forward.state();
    Tree used;
    balanced(state, [&] {
      forward.push();
      push_tree(state, params);
      call(state, 1, 1);
      if (const at::Tensor* result = test_tensor(state, -1)) used = *result;
      lua_pop(state, 1);
    });
    return used;
  };
  push_decisions(L, decide_sharding(check_tree(L, 2), n_model_shards, rules, traced,
                                    deployer->mesh()->sequence_parallel()));
  return 1;
}

int alone(lua_State* L) {
  auto deployer = check_deployer(L);
  require(lua_isfunction(L, 2), "Deployer:alone: expected a function, got ", described(L, 2));
  Ref function(L, 2);
  std::vector<Tree> results = deployer->alone([&](const std::shared_ptr<Deployer>& own) {
    lua_State* state = function.state();
    MathRandom math_random(state);
    auto mesh_before = std::exchange(context(state).mesh, own->mesh());
    auto restore = c10::make_scope_exit([&] { context(state).mesh = mesh_before; });
    return balanced(state, [&] {
      function.push();
      push_object(state, std::make_shared<LuaDeployer>(LuaDeployer{own, own->seed()}));
      call(state, 1, 1);
      return lua_isnil(state, -1) ? Tree() : check_tree(state, lua_gettop(state), "alone: result");
    });
  });
  lua_createtable(L, int(results.size()), 0);
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].is_none())
      lua_pushboolean(L, false);
    else
      push_tree(L, results[i]);
    lua_rawseti(L, -2, int(i) + 1);
  }
  return 1;
}

int deployer_field(lua_State* L) {
  auto deployer = check_deployer(L);
  std::string name = luaL_checkstring(L, 2);
  const Mesh& mesh = *deployer->mesh();
  if (name == "n_processes") {
    push_integer(L, mesh.processes().size);
    return 1;
  }
  if (name == "process_id") {
    push_integer(L, mesh.processes().rank);
    return 1;
  }
  if (name == "mesh") {
    deployer->require_layout("deployer.mesh");
    lua_createtable(L, 0, Mesh::n_dims);
    for (Mesh::Dim dim : Mesh::dims) {
      push_integer(L, mesh.size(dim));
      lua_setfield(L, -2, Mesh::facts[dim].name);
    }
    return 1;
  }
  if (name == "workdir") {
    if (deployer->workdir().empty())
      lua_pushnil(L);
    else
      lua_pushstring(L, deployer->workdir().c_str());
    return 1;
  }
  fail("a Deployer has no '", name, "'; its fields are workdir, n_processes, process_id and mesh");
}

std::vector<Function> run_methods() {
  return {
      {"gen_rng", gen_rng,
       "gen_rng(self) -> Generator\n"
       "Returns a new source of random numbers, as `redco.Rng`. Each call returns another one; "
       "runs with the same seed get the same ones."},
      {"get_lr_schedule_fn", get_lr_schedule_fn,
       "get_lr_schedule_fn(self, {train_size, per_device_batch_size, n_epochs, learning_rate: "
       "number, global_batch_size = nil, accumulate_grad_batches = nil, schedule_type = "
       "\"linear\", "
       "warmup_ratio = 0, warmup_steps = nil, init_learning_rate = 0, end_learning_rate = 0}) -> "
       "function(step) -> number\n"
       "Returns a learning rate schedule for an optimizer: a linear warm-up, then \"linear\" or "
       "\"cosine\" decay until the last optimizer step of the run.\n"
       "  train_size: the number of training examples\n"
       "  learning_rate: the value after the warm-up, its maximum\n"
       "  global_batch_size: examples of one optimizer step, as in Trainer:fit\n"
       "  accumulate_grad_batches: micro-batches of one optimizer step, instead of "
       "global_batch_size\n"
       "  warmup_ratio: the part of all steps, from 0 to 1, that warms up\n"
       "  warmup_steps: their number, instead of warmup_ratio\n"
       "  init_learning_rate, end_learning_rate: the first and the last value"},
      {"get_accumulate_grad_batches", get_accumulate_grad_batches,
       "get_accumulate_grad_batches(self, {global_batch_size, per_device_batch_size}) -> "
       "integer\n"
       "Returns the number of micro-batches in one optimizer step. Raises an error if "
       "global_batch_size is not a multiple of a micro-batch."},
      {"get_local_global_micro_batch_size", get_local_global_micro_batch_size,
       "get_local_global_micro_batch_size(self, {per_device_batch_size}) -> integer, integer\n"
       "Returns the number of examples of a micro-batch on one device, and on the whole mesh."},
      {"get_sharding_rules", get_sharding_rules,
       "get_sharding_rules(self, params, forward, rules = nil, n_model_shards = nil) -> list\n"
       "Plans how the parameters are sharded over the model shards. Returns a list of {name, "
       "placement, reason = ...}, which tostring formats as a table. You can change the list "
       "and pass it to a Trainer as params_sharding_rules. The plan comes from calls of "
       "`forward(params)` on tensors with shapes and no values. It should return the loss, so "
       "that the moves of its backward pass count. `rules` is such a list that "
       "takes precedence. `n_model_shards` plans for another number of shards than the "
       "Deployer's."},
      {"alone", alone,
       "alone(self, f) -> list\n"
       "Runs f(own) on each process by itself, for as long as it takes, and returns the results "
       "of all processes, by their number: trees, whose tensors are on the CPU, or false for "
       "none. `own` is a Deployer of this process alone, as each redco.Deployer made inside f is. "
       "Random numbers inside f, also those of math.random, differ between processes; a Deployer "
       "with a fixed seed makes work independent of the process that does it. Inside f, "
       "anything that needs the other processes raises an error with its line. If f fails on one "
       "process, all processes raise an error."}};
}

constexpr const char* deployer_text = R"text(Deployer{seed, n_model_shards: integer or string = 1,
  n_context_shards = 1, n_expert_shards = 1, n_pipeline_stages = 1, n_chunks_per_stage = 1,
  zero: integer or string = 0, zero_min_size = 4096, zero_group = nil, sequence_parallel: boolean or string = false, memory: integer or string = nil,
  device = nil, workdir = nil, run_tensorboard = false, log_all_processes = false, verbose = true,
  n_processes = nil, process_id = nil, host0_address = nil, host0_port = 11111,
  collective_timeout = 600} -> Deployer
Creates the deployer of a run: its processes, device, random numbers and log. Processes started by
redco-lua --nproc N, torchrun, srun or mpirun find each other. Otherwise pass n_processes,
process_id and host0_address.
  seed: an integer that determines all random numbers of the run
  n_model_shards: the number of processes that share one copy of the model; the other processes hold
    further copies and split the batch
  n_context_shards: the number of processes, or of groups of n_model_shards, that share each
    example: each has a part of its positions, see context_dims of redco.Trainer. For examples that
    are too long for one device
  n_expert_shards: the number of copies of the model that share the experts of mixtures: each holds
    a part of the experts, and tokens are sent to the experts that the router chose. For mixtures
    that are too large for one device
  n_pipeline_stages: the number of stages that the blocks of the model (redco.nn.block) are divided
    into: a process has the blocks of one stage, and the micro-batches of a step pass through the
    stages one behind the other. For models that are too deep for one host. Stages wait less the
    more micro-batches a step has: see global_batch_size of Trainer:fit
  n_chunks_per_stage: the number of chunks of consecutive blocks that each stage has: n stages of v
    chunks wait (n - 1) / (v m + n - 1) of the time with m micro-batches (interleaved 1F1B). Each
    process calls loss_fn v times for each micro-batch, which must compute the same each time
  zero: the state that copies of the model and context shards shard instead of replicating: 1
    optimizer states, 2 also gradients, 3 also parameters
  zero_min_size: parameters with fewer values are not sharded this way
  zero_group: the number of copies of the model that shard this state; groups of them hold copies of
    it, and only sum their gradients. "host": the processes of one host. By default all copies of the model
    are one group
  sequence_parallel: the shards of one copy split activations along their sequence between the
    blocks
  memory: with n_model_shards, zero or sequence_parallel = "auto", the memory of a device, in bytes or
    as a text such as "70 GiB"; by default what the device with the least has. The first fit, train
    or train_step then plans, as Trainer:plan does, and takes the fastest layout that fits. It keeps
    the examples of an optimizer step, and may change per_device_batch_size and recompute. Until then
    `deployer.mesh` raises an error
  device: "cpu" or "cuda", to which parameters and batches are moved; on a host with several GPUs,
    each process uses the GPU with its local number. By default they stay where they are
  workdir: the folder of log.txt, metrics.jsonl, checkpoints, and outputs and metrics of
    evaluations. Only process 0 logs. Raises an error if another run uses the folder
  run_tensorboard: also writes an event file for TensorBoard
  log_all_processes: the other processes write log_RANK.txt
  verbose: also prints the log to the console
  n_processes: the number of processes
  process_id: the number of this process, from 0
  host0_address: the address of process 0, which listens on host0_port
  collective_timeout: seconds after which an unfinished collective raises an error)text";

}  // namespace

void add_deployer(lua_State* L) {
  std::vector<Function> methods = run_methods();
  for (const auto& more : {checkpoint_methods(), log_methods()})
    methods.insert(methods.end(), more.begin(), more.end());
  make_object_type<LuaDeployer>(
      L,
      "Deployer {workdir, n_processes, process_id, mesh: table}\n"
      "The processes, random numbers and log of a run.\n"
      "  mesh: {dp = copies of the model, mp = shards of each, cp = shards of the positions of "
      "each example, ep = copies that share the experts of mixtures, pp = stages of a pipeline, "
      "dp_replicate = groups of "
      "copies}; dp counts those of one group, see zero_group, with the same experts",
      methods, deployer_field);
  register_functions(L, "redco.", {{"Deployer", make_deployer, deployer_text}});
}

}  // namespace redco::lua
