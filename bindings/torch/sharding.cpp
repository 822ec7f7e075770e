// redco.shard, redco.parameter and the methods of sharded tensors.
#include "sharding.h"

#include "recompute.h"
#include "state/arguments.h"
#include "state/context.h"
#include "state/registry.h"
#include "state/tensor.h"
#include "state/values.h"

#include <redco/detail/text_of_process.h>
#include <redco/error.h>
#include <redco/moves.h>
#include <redco/plan.h>
#include <redco/sharding_report.h>

#include <map>
#include <optional>
#include <string>
#include <utility>

namespace redco::lua {

namespace {

// The lengths of blocks: a number, or a list of them.
std::vector<int64_t> check_blocks(lua_State* L, NamedArguments& args, const std::string& what) {
  args.push("block");
  std::vector<int64_t> lengths;
  if (lua_istable(L, -1)) {
    for (size_t i = 1; i <= lua_objlen(L, -1); ++i) {
      lua_rawgeti(L, -1, int(i));
      std::optional<int64_t> length = test_integer(L, -1);
      require(length && *length > 0, what, ": block[", i, "] is ", describe(L, -1),
              ", expected a positive integer");
      lengths.push_back(*length);
      lua_pop(L, 1);
    }
    require(lengths.size() > 1, what, ": block has ", lengths.size(),
            " entries, expected a number or a list of two or more");
  }
  lua_pop(L, 1);
  return lengths;
}

// Reads a placement from the top of the stack: a dimension, "replicate", "partial", {dim, block} or
// {rank}. Negative dimensions count from the end of `n_dims`, if that is known.
Placement check_placement(lua_State* L, const std::string& what, std::optional<int64_t> n_dims) {
  auto shard = [&](int64_t dim, int64_t block, int64_t grain) {
    if (n_dims && dim < 0) dim += *n_dims;
    require(dim >= 0 && (!n_dims || dim < *n_dims), what, ": there is no dimension ",
            n_dims && dim < 0 ? dim - *n_dims : dim,
            n_dims ? ", the tensor has " + std::to_string(*n_dims)
                   : "; dimensions of a rule count from 0");
    return Placement::shard(dim, block, grain);
  };
  int index = lua_gettop(L);
  if (lua_isnil(L, index)) return Placement::replicate();
  if (auto dim = test_integer(L, index)) return shard(*dim, 0, 1);
  if (lua_istable(L, index)) {
    NamedArguments args(L, index, what);
    if (auto rank = args.optional<int64_t>("rank")) {
      args.finish();
      require(*rank >= 0, what, ": rank = ", *rank, " must not be negative");
      return Placement::on_rank(*rank);
    }
    auto dim = args.required<int64_t>("dim");
    std::vector<int64_t> lengths = check_blocks(L, args, what);
    auto block = lengths.empty() ? args.get<int64_t>("block", 0) : 0;
    auto grain = args.get<int64_t>("grain", 1);
    args.finish();
    require(grain > 0, what, ": grain = ", grain, " must be positive");
    const Placement even = shard(dim, block, grain);
    return lengths.empty() ? even : Placement::shard_blocks(even.dim, lengths, grain);
  }
  std::string name = lua_type(L, index) == LUA_TSTRING ? lua_tostring(L, index) : "";
  if (name == "replicate") return Placement::replicate();
  if (name == "partial") return Placement::reduction();
  fail(what, ": expected a dimension, \"replicate\", \"partial\" or {dim = 1, block = 768}; got ",
       describe(L, index));
}

// Pushes a placement in the form of a sharding rule.
void push_rule_placement(lua_State* L, const Placement& placement) {
  if (!placement.is_sharded()) {
    lua_pushliteral(L, "replicate");
  } else if (!placement.is_in_blocks() && placement.grain == 1) {
    push_integer(L, placement.dim);
  } else {
    lua_createtable(L, 0, 3);
    push_integer(L, placement.dim);
    lua_setfield(L, -2, "dim");
    if (placement.lengths) {
      lua_createtable(L, int(placement.lengths->size()), 0);
      for (size_t i = 0; i < placement.lengths->size(); ++i) {
        push_integer(L, (*placement.lengths)[i]);
        lua_rawseti(L, -2, int(i) + 1);
      }
      lua_setfield(L, -2, "block");
    } else if (placement.block > 0) {
      push_integer(L, placement.block);
      lua_setfield(L, -2, "block");
    }
    if (placement.grain > 1) {
      push_integer(L, placement.grain);
      lua_setfield(L, -2, "grain");
    }
  }
}

int shard(lua_State* L) {
  const at::Tensor& tensor = check_tensor(L, 1);
  std::shared_ptr<const Mesh> mesh = is_sharded(tensor) ? mesh_of(tensor) : current_mesh(L);
  require(mesh != nullptr,
          "redco.shard: the processes are not connected: create a redco.Deployer first");
  const char* what = "redco.shard: placement";
  NamedArguments args(L, 2, what);
  Placements placements;
  for (Mesh::Dim dim : Mesh::dims) {
    const char* name = Mesh::facts[dim].name;
    args.push(name);
    placements[dim] = check_placement(L, std::string(what) + "." + name, tensor.dim());
  }
  args.finish();
  about_to_read(tensor);
  push_tensor(L, redco::shard(tensor, mesh, placements));
  return 1;
}

int parameter(lua_State* L) {
  std::vector<int64_t> sizes;
  if (auto size = test_integer(L, 1)) {
    sizes = {*size};
  } else {
    require(lua_istable(L, 1), "redco.parameter: expected a list of sizes, got ", described(L, 1));
    for (size_t i = 1; i <= lua_objlen(L, 1); ++i) {
      lua_rawgeti(L, 1, int(i));
      sizes.push_back(check_integer(L, -1, "redco.parameter: a size"));
      lua_pop(L, 1);
    }
  }
  for (int64_t size : sizes)
    require(size >= 0, "redco.parameter: the size ", size, " must not be negative");
  at::ScalarType dtype = at::kFloat;
  bool is_sharded = true;
  if (!lua_isnoneornil(L, 2)) {
    NamedArguments args(L, 2, "redco.parameter");
    dtype = args.get<c10::ScalarType>("dtype", dtype);
    is_sharded = args.get<bool>("sharded", is_sharded);
    args.finish();
  }
  std::shared_ptr<const Mesh> mesh = current_mesh(L);
  at::TensorOptions options(dtype);
  std::optional<PlanMode::ScriptCall> planned;
  if (PlanMode::is_on()) planned.emplace();
  if (mesh) options = options.device(mesh->device());
  push_tensor(L, is_sharded ? empty_spread(sizes, options, mesh) : at::empty(sizes, options));
  return 1;
}

int placement(lua_State* L) {
  Placements placements = placements_of(check_tensor(L, 1));
  lua_createtable(L, 0, Mesh::n_dims);
  for_each_shown(placements, [&](const char* name, const Placement& placement) {
    lua_pushstring(L, to_string(placement).c_str());
    lua_setfield(L, -2, name);
  });
  return 1;
}

int full(lua_State* L) {
  const at::Tensor& tensor = check_tensor(L, 1);
  about_to_read(tensor);
  push_tensor(L, redco::full(tensor));
  return 1;
}

int from_stage(lua_State* L) {
  const at::Tensor& tensor = check_tensor(L, 1);
  about_to_read(tensor);
  push_tensor(L, redco::from_stage(tensor));
  return 1;
}

int to_local(lua_State* L) {
  const at::Tensor& tensor = check_tensor(L, 1);
  about_to_read(tensor);
  push_tensor(L, redco::to_local(tensor), 0);
  return 1;
}

int is_sharded(lua_State* L) {
  lua_pushboolean(L, redco::is_sharded(check_tensor(L, 1)));
  return 1;
}

void push_traffic(lua_State* L, int64_t count, int64_t bytes) {
  lua_createtable(L, 0, 2);
  push_integer(L, count);
  lua_setfield(L, -2, "count");
  push_integer(L, bytes);
  lua_setfield(L, -2, "bytes");
}

void push_moves(lua_State* L, const std::map<Move, Moved>& moves) {
  lua_createtable(L, int(moves.size()), 0);
  int place = 0;
  for (const auto& [move, moved] : moves) {
    lua_createtable(L, 0, 11);
    for (const auto& [name, text] :
         {std::pair("cause", std::string(Move::name(move.cause))), std::pair("what", move.what),
          std::pair("line", move.line), std::pair("group", move.group),
          std::pair("kind", std::string(Group::name(move.kind)))}) {
      lua_pushstring(L, text.c_str());
      lua_setfield(L, -2, name);
    }
    for (const auto& [name, number] :
         {std::pair("calls", moved.calls), std::pair("collectives", moved.collectives),
          std::pair("bytes", moved.bytes)}) {
      push_integer(L, number);
      lua_setfield(L, -2, name);
    }
    lua_pushboolean(L, move.is_backward);
    lua_setfield(L, -2, "is_backward");
    lua_pushboolean(L, move.is_gather());
    lua_setfield(L, -2, "is_gather");
    if (move.is_gather()) {
      lua_pushstring(L, advice(move.what).c_str());
      lua_setfield(L, -2, "advice");
    }
    lua_rawseti(L, -2, ++place);
  }
}

void push_collectives(lua_State* L, const Group& group) {
  lua_createtable(L, 0, Group::n_kinds);
  for (uint8_t kind = 0; kind < Group::n_kinds; ++kind) {
    const Traffic& traffic = group.counters()[kind];
    push_traffic(L, traffic.count, traffic.bytes);
    lua_setfield(L, -2, Group::name(Group::Kind(kind)));
  }
}

// text_of_first(text) -> the text that process 0 gave. All processes call it.
int text_of_first(lua_State* L) {
  size_t size = 0;
  const char* bytes = luaL_checklstring(L, 1, &size);
  std::string text(bytes, size);
  if (const auto mesh = current_mesh(L)) text = mesh::text_of_process(*mesh, 0, text);
  lua_pushlstring(L, text.data(), text.size());
  return 1;
}

// forget_mesh(): the next script of this state has no Deployer yet. For tests that run several.
int forget_mesh(lua_State* L) {
  context(L).mesh.reset();
  return 0;
}

int counters(lua_State* L) {
  std::shared_ptr<const Mesh> mesh = current_mesh(L);
  require(mesh != nullptr, "redco.sharding_counters: create a redco.Deployer first");
  lua_createtable(L, 0, 4);
  lua_createtable(L, 0, Mesh::n_dims + 1);
  for (Mesh::Dim dim : Mesh::dims) {
    push_collectives(L, mesh->group(dim));
    lua_setfield(L, -2, Mesh::facts[dim].name);
  }
  push_collectives(L, mesh->world());
  lua_setfield(L, -2, "world");
  lua_setfield(L, -2, "collectives");
  const ShardingCounters& counted = sharding_counters();
  push_moves(L, move_counters().moves);
  lua_setfield(L, -2, "moves");
  push_integer(L, move_counters().gathered_bytes);
  lua_setfield(L, -2, "gathered_bytes");
  push_integer(L, counted.plans_found);
  lua_setfield(L, -2, "plans_found");
  push_integer(L, counted.plans_made);
  lua_setfield(L, -2, "plans_made");
  return 1;
}

}  // namespace

std::shared_ptr<const Mesh> current_mesh(lua_State* L) { return context(L).mesh; }

at::Tensor readable(const at::Tensor& tensor, const char* function) {
  if (!redco::is_sharded(tensor)) return tensor;
  require(placements_of(tensor) == Placements(), function, ": a Tensor ", described(tensor),
          " is sharded over several processes: ", to_string(placements_of(tensor)),
          "; call :full() on every process first, or :to_local() for the part of this one");
  return redco::to_local(tensor.detach());
}

std::vector<ShardingRule> check_sharding_rules(lua_State* L, int index, const std::string& what) {
  return balanced(L, [&] {
    require(lua_istable(L, index), what, ": expected a list of {pattern, placement}, got ",
            described(L, index));
    std::vector<ShardingRule> rules;
    for (int i = 1; i <= int(lua_objlen(L, index)); ++i) {
      const std::string entry = what + ": rule " + std::to_string(i);
      lua_rawgeti(L, index, i);
      require(lua_istable(L, -1), entry, ": expected {pattern, placement}, got ",
              described(L, lua_gettop(L)));
      lua_rawgeti(L, -1, 1);
      require(lua_type(L, -1) == LUA_TSTRING, entry,
              ": expected a pattern of parameter names first, got ", described(L, lua_gettop(L)));
      std::string pattern = lua_tostring(L, -1);
      lua_rawgeti(L, -2, 2);
      require(!lua_isnil(L, -1), entry, ", \"", pattern, "\": the placement is missing");
      Placement placement = check_placement(L, entry + ", \"" + pattern + "\"", std::nullopt);
      require(!placement.is_partial(), entry, ", \"", pattern, "\": a parameter cannot be partial");
      rules.push_back({pattern, placement});
      lua_pop(L, 3);
    }
    return rules;
  });
}

std::vector<ShardingRule> check_sharding_rules(NamedArguments& args) {
  lua_State* L = args.state();
  args.push("params_sharding_rules");
  std::vector<ShardingRule> rules;
  if (!lua_isnil(L, -1))
    rules = check_sharding_rules(L, lua_gettop(L), args.function() + ": params_sharding_rules");
  lua_pop(L, 1);
  return rules;
}

void push_decisions(lua_State* L, const std::vector<ShardingDecision>& decisions) {
  lua_createtable(L, int(decisions.size()), 0);
  for (size_t i = 0; i < decisions.size(); ++i) {
    lua_createtable(L, 2, 1);
    lua_pushstring(L, decisions[i].name.c_str());
    lua_rawseti(L, -2, 1);
    push_rule_placement(L, decisions[i].placement);
    lua_rawseti(L, -2, 2);
    lua_pushstring(L, decisions[i].reason.c_str());
    lua_setfield(L, -2, "reason");
    lua_rawseti(L, -2, int(i) + 1);
  }
  lua_newtable(L);
  lua_pushstring(L, to_string(decisions).c_str());
  lua_pushcclosure(
      L,
      [](lua_State* state) {
        lua_pushvalue(state, lua_upvalueindex(1));
        return 1;
      },
      1);
  lua_setfield(L, -2, "__tostring");
  lua_setmetatable(L, -2);
}

void add_sharding_methods(lua_State* L) {
  register_functions(
      L, "Tensor:",
      {{"placement", placement,
        "placement(self) -> {dp, mp}\n"
        "Returns how the tensor is placed on the data-parallel and the model-parallel "
        "processes: \"replicate\", \"shard(0)\", \"partial(sum)\", \"on_rank(0)\". A tensor that "
        "differs between the Deployer's context shards, its expert shards, or its groups of "
        "zero_group, also has `cp`, `ep` or `dp_replicate`."},
       {"full", full,
        "full(self) -> Tensor\n"
        "Returns a copy of the whole tensor, as a plain one; every process must call it. Later "
        "writes to the tensor do not change the copy. Gradients flow through it."},
       {"to_local", to_local,
        "to_local(self) -> Tensor\n"
        "Returns this process' part of a sharded tensor as a plain tensor that shares its "
        "memory; returns a plain tensor itself. For a partial tensor it returns a copy of this "
        "process' term. Gradients flow through it."},
       {"is_sharded", is_sharded,
        "is_sharded(self) -> boolean\n"
        "Returns true for a tensor that is placed on several processes."}});
}

void add_sharding(lua_State* L) {
  lua_pushcfunction(L, text_of_first);
  lua_setfield(L, -2, "text_of_first");
  lua_pushcfunction(L, forget_mesh);
  lua_setfield(L, -2, "forget_mesh");
  register_functions(
      L, "redco.",
      {{"shard", shard,
        "shard(tensor, {dp = nil, ep = nil, cp = nil, mp = nil, pp = nil, dp_replicate = nil}) -> "
        "like "
        "tensor\n"
        "Shards a tensor over the processes of the newest Deployer. All processes pass the same "
        "tensor and each keeps its part; the result stands for the whole tensor. `dp`, `ep`, `cp` "
        "and `mp` are the dimension that is split over data-parallel processes, expert shards, "
        "context shards and model shards (from 0; negative ones from the end), \"replicate\" (the "
        "default), \"partial\" (a sum of terms), {dim = 1, block = 768} for blocks that are each "
        "split, or {rank = 0} for a tensor that one process has whole. `pp`, stages of a pipeline, "
        "and `dp_replicate` are the same; the latter is for "
        "the groups that the Deployer's zero_group makes of the data-parallel processes. A sharded "
        "tensor is redistributed; every process must call it. The result is a copy, also on one "
        "process and where the tensor is placed so already. Gradients flow through it."},
       {"from_stage", from_stage,
        "from_stage(tensor) -> like tensor\n"
        "Returns a tensor that one stage of a pipeline has computed (n_pipeline_stages of the "
        "Deployer) on the processes of all stages, which must all call it: in a pred_fn, a "
        "train_step_fn and evaluations. In the loss_fn of a training step it is an error, since "
        "the stages are at different micro-batches: return such a value as a metric. Returns any "
        "other tensor itself. Gradients flow through it."},
       {"parameter", parameter,
        "parameter(sizes, {dtype = \"float32\", sharded = true}) -> Tensor [sizes...]\n"
        "Returns an uninitialised tensor for a parameter, on the newest Deployer's device; fill it "
        "with the functions of `redco.nn.init`. After a Deployer has connected several processes, "
        "they share it evenly, so none holds a whole model; a Trainer redistributes it. With "
        "`sharded = false` each process has all of it. With a generator, it gets the same values "
        "on any number of processes."},
       {"sharding_counters", counters,
        "sharding_counters() -> table\n"
        "Returns what sharding did on this process since the start.\n"
        "\n"
        "`collectives.dp`, `.ep`, `.cp`, `.mp`, `.pp`, `.dp_replicate` and `.world` have, by kind "
        "(all_reduce, "
        "all_gather, reduce_scatter, all_to_all), a `count` and the `bytes` that this process "
        "sent. They are those of rings and pairwise exchanges; on CPUs, a small all-reduce of "
        "three or more processes sends more.\n"
        "\n"
        "`moves` is a list of the reasons for the collectives, with the same bytes in total. An "
        "entry has `what` (an operator, \"aten::cumsum\", or a function), `line` of the script, "
        "`is_backward`, `group`, `kind`, `calls`, `collectives`, `bytes` and `cause`. The cause "
        "is \"operator\" (its arguments were redistributed), \"operator without rule\" (one that "
        "needs whole tensors), \"within operator\" (partial results were summed), \"request\" "
        "(shard, full), \"parameters\" (of zero), \"gradients\", \"checkpoint\", \"stage\" or "
        "\"other\". "
        "`is_gather` is true if arguments of an operator were gathered or redistributed; "
        "`advice` then says what to do. `gathered_bytes` is the sum of their bytes.\n"
        "\n"
        "`plans_made` and `plans_found` count the calls of operators that needed a new plan and "
        "that found one. `Trainer:memory` returns the bytes held."}});
}

}  // namespace redco::lua
