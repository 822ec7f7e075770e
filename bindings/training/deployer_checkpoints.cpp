// The methods of redco.Deployer that write and read checkpoints.
#include <redco/checkpoint.h>
#include <redco/plan.h>

#include "check.h"
#include "deployer_methods.h"
#include "state/arguments.h"
#include "state/values.h"

#include <optional>
#include <string>
#include <utility>

namespace redco::lua {

namespace {

int save_ckpt_of_trees(lua_State* L) {
  auto deployer = check_deployer(L);
  NamedArguments args(L, 2, "Deployer:save_ckpt");
  auto ckpt_dir = args.required<std::string>("ckpt_dir");
  Checkpoint checkpoint;
  checkpoint.params = args.required<Tree>("params");
  checkpoint.opt_state = args.get<Tree>("opt_state", {});
  checkpoint.custom_state = args.get<Tree>("custom_state", {});
  checkpoint.info = args.get<Tree>("info", Tree::Dict{});
  SaveCheckpointOptions options;
  options.float_dtype = args.optional<c10::ScalarType>("float_dtype");
  options.max_shard_size = args.get<int64_t>("max_shard_size", options.max_shard_size);
  args.finish();
  deployer->save_ckpt(ckpt_dir, std::move(checkpoint), options);
  return 0;
}

LoadCheckpointOptions read_loading(NamedArguments& args) {
  LoadCheckpointOptions options;
  options.params = args.get<bool>("load_params", true);
  options.opt_state = args.get<bool>("load_opt_state", true);
  options.float_dtype = args.optional<c10::ScalarType>("float_dtype");
  options.frozen = args.get<Tree>("params", {});
  args.refuse({"optimizer"}, "the checkpoint describes its optimizer state; omit it");
  args.refuse({"params_sharding_rules"},
              "pass them to the Trainer or Predictor, which shards the parameters");
  return options;
}

int push_ckpt(lua_State* L, Checkpoint checkpoint) {
  lua_createtable(L, 0, 3);
  push_tree(L, checkpoint.params);
  lua_setfield(L, -2, "params");
  push_tree(L, checkpoint.opt_state);
  lua_setfield(L, -2, "opt_state");
  push_tree(L, checkpoint.custom_state);
  lua_setfield(L, -2, "custom_state");
  push_tree(L, checkpoint.info);
  return 2;
}

int load_ckpt(lua_State* L) {
  auto deployer = check_deployer(L);
  NamedArguments args(L, 2, "Deployer:load_ckpt");
  auto ckpt_dir = args.required<std::string>("ckpt_dir");
  LoadCheckpointOptions options = read_loading(args);
  bool update_rng = args.get<bool>("update_rng", false);
  args.finish();
  return push_ckpt(L, deployer->load_ckpt(ckpt_dir, options, update_rng));
}

int load_last_ckpt(lua_State* L) {
  auto deployer = check_deployer(L);
  if (lua_isnoneornil(L, 2)) {
    lua_settop(L, 1);
    lua_newtable(L);
  }
  NamedArguments args(L, 2, "Deployer:load_last_ckpt");
  LoadCheckpointOptions options = read_loading(args);
  bool update_rng = args.get<bool>("update_rng", true);
  args.finish();
  // A planned or checked script begins anew.
  auto checkpoint = PlanMode::is_on() || is_checking(L)
                        ? std::nullopt
                        : deployer->load_last_ckpt(options, update_rng);
  if (checkpoint) return push_ckpt(L, *std::move(checkpoint));
  lua_pushnil(L);
  lua_pushnil(L);
  return 2;
}

int load_params_shape(lua_State* L) {
  check_deployer(L);
  require(lua_type(L, 2) == LUA_TSTRING,
          "Deployer:load_params_shape: expected the folder of a checkpoint, got ", described(L, 2));
  push_tree(L, redco::load_params_shape(lua_tostring(L, 2)));
  return 1;
}

}  // namespace

std::vector<Function> checkpoint_methods() {
  return {
      {"save_ckpt", save_ckpt_of_trees,
       "save_ckpt(self, {ckpt_dir, params, opt_state = nil, custom_state = nil, info = nil, "
       "float_dtype = nil, max_shard_size = 5e9})\n"
       "Writes a checkpoint and waits until it is written: a folder of safetensors files with "
       "whole tensors, independent of their sharding, and info.json with the fields of `info`. "
       "The write is atomic and replaces an earlier checkpoint of that name."},
      {"load_ckpt", load_ckpt,
       "load_ckpt(self, {ckpt_dir, load_params = true, load_opt_state = true, float_dtype = nil, "
       "update_rng = false, params = nil}) -> {params, opt_state, custom_state}, info\n"
       "Loads a checkpoint, whatever layout wrote it. Verifies the checksum of every file. "
       "`float_dtype` converts floating-point tensors. With `update_rng`, random numbers "
       "continue where the saved run left off. Pass `info` to a Trainer as last_ckpt_info. A "
       "checkpoint of a Trainer only names the parameters that were not trained and came from "
       "files of weights. These are read from there, or taken from the tree `params`, such as "
       "the one with which the run began; other values than in the run are an error."},
      {"load_last_ckpt", load_last_ckpt,
       "load_last_ckpt(self, {load_params = true, load_opt_state = true, float_dtype = nil, "
       "update_rng = true, params = nil}) -> {params, opt_state, custom_state}, info\n"
       "Loads the newest checkpoint of the work folder; returns nil, nil if there is none. If "
       "the checkpoint that last_ckpt.txt names is missing or damaged, it loads the newest "
       "intact one, logs that, and renames damaged ones to NAME.damaged. Raises an error if "
       "all are damaged. `params` as in `load_ckpt`."},
      {"load_params_shape", load_params_shape,
       "load_params_shape(self, ckpt_dir) -> table\n"
       "Returns the params of a checkpoint without values: tensors on the meta device."}};
}

}  // namespace redco::lua
