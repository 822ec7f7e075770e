// The methods of redco.Deployer that write the log of a run.
#include "deployer_methods.h"
#include "state/arguments.h"
#include "state/plain_tree.h"
#include "state/tensor.h"
#include "state/values.h"
#include "training_objects.h"

#include <map>
#include <optional>
#include <string>

namespace redco::lua {

namespace {

// Returns the text of a value as the prompt shows it.
std::string shown(lua_State* L, int index) {
  if (lua_type(L, index) == LUA_TSTRING) return lua_tostring(L, index);
  lua_getfield(L, LUA_GLOBALSINDEX, "require");
  lua_pushliteral(L, "redco.repl.pretty");
  call(L, 1, 1);
  lua_getfield(L, -1, "answer");
  lua_pushvalue(L, index);
  lua_newtable(L);
  lua_pushinteger(L, 100);
  lua_setfield(L, -2, "width");
  call(L, 2, 1);
  std::string text = lua_tostring(L, -1);
  lua_pop(L, 2);
  return text;
}

int log_info(lua_State* L) {
  auto deployer = check_deployer(L);
  luaL_checkany(L, 2);
  std::string info = shown(L, 2);
  std::string title;
  std::optional<int64_t> step;
  if (!lua_isnoneornil(L, 3)) {
    NamedArguments args(L, 3, "Deployer:log_info");
    title = args.get<std::string>("title", "");
    step = args.optional<int64_t>("step");
    args.finish();
  }
  deployer->log_info(info, title, step);
  return 0;
}

int log_metrics(lua_State* L) {
  auto deployer = check_deployer(L);
  deployer->log_metrics(check_metrics(L, 2, "Deployer:log_metrics: metrics"),
                        check_integer(L, 3, "Deployer:log_metrics: step"));
  return 0;
}

int log_image(lua_State* L) {
  auto deployer = check_deployer(L);
  deployer->log_image(luaL_checkstring(L, 2), check_tensor(L, 3),
                      check_integer(L, 4, "Deployer:log_image: step"));
  return 0;
}

int log_histogram(lua_State* L) {
  auto deployer = check_deployer(L);
  deployer->log_histogram(luaL_checkstring(L, 2), check_tree(L, 3, "Deployer:log_histogram"),
                          check_integer(L, 4, "Deployer:log_histogram: step"));
  return 0;
}

int log_hparams(lua_State* L) {
  auto deployer = check_deployer(L);
  require(lua_istable(L, 2), "Deployer:log_hparams: expected a table of settings, got ",
          described(L, 2));
  Tree settings = check_tree(L, 2, "Deployer:log_hparams");
  require(settings.is<Tree::Dict>(), "Deployer:log_hparams: expected settings by name, got a list");
  deployer->log_hparams(settings.as<Tree::Dict>());
  return 0;
}

int save_outputs(lua_State* L) {
  auto deployer = check_deployer(L);
  check_list(L, 2, "Deployer:save_outputs: outputs");
  NamedArguments args(L, 3, "Deployer:save_outputs");
  auto desc = args.required<std::string>("desc");
  auto step = args.required<int64_t>("step");
  args.finish();
  deployer->save_outputs(plain_tree(L, 2), desc, step);
  return 0;
}

}  // namespace

std::map<std::string, double> check_metrics(lua_State* L, int index, const std::string& what) {
  require(lua_istable(L, index), what, ": expected a table of numbers, got ", described(L, index));
  std::map<std::string, double> metrics;
  for (lua_pushnil(L); lua_next(L, index); lua_pop(L, 1)) {
    std::string key = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : "";
    require(!key.empty(), what, ": the key ", described(L, -2), " is not a name");
    if (at::Tensor* tensor = test_tensor(L, -1)) {
      require(tensor->numel() == 1, what, ": ", key, " is ", described(*tensor),
              "; expected a number or a tensor of one element");
      metrics[key] = tensor->item<double>();
    } else {
      require(lua_type(L, -1) == LUA_TNUMBER, what, ": ", key, " is ", described(L, -1),
              "; expected a number or a tensor of one element");
      metrics[key] = lua_tonumber(L, -1);
    }
  }
  return metrics;
}

std::vector<Function> log_methods() {
  return {
      {"log_info", log_info,
       "log_info(self, info, {title = nil, step = nil})\n"
       "Writes a text to the console and workdir/log.txt. Other values are written as the prompt "
       "shows them. A text with a title is also written to TensorBoard."},
      {"log_metrics", log_metrics,
       "log_metrics(self, metrics, step = nil)\n"
       "Writes a table of numbers to workdir/metrics.jsonl, as one line with `step`, and to "
       "TensorBoard, there as train/NAME if the name has no slash."},
      {"log_image", log_image,
       "log_image(self, name, pixels, step = nil)\n"
       "Writes an image to TensorBoard: a tensor [height, width] or [channels, height, width] "
       "with 1, 3 or 4 channels, either uint8 or floating-point from 0 to 1."},
      {"log_histogram", log_histogram,
       "log_histogram(self, name, values: Tensor or table, step)\n"
       "Writes the distribution of a tensor's values to TensorBoard, or of each tensor in a tree "
       "such as trainer.params, whose dotted name follows. Values that are not finite are left "
       "out. All processes must call it."},
      {"log_hparams", log_hparams,
       "log_hparams(self, settings: table)\n"
       "Writes settings of the run to TensorBoard, which compares runs by them in its tab "
       "HPARAMS: numbers, strings and booleans by name, such as the table that `redco.options` "
       "returns."},
      {"save_outputs", save_outputs,
       "save_outputs(self, outputs, {desc, step})\n"
       "Writes a list to workdir/outputs_DESC.json, and its first ten entries to TensorBoard at "
       "`step`. Both `desc` and `step` are required. Values that JSON cannot represent are "
       "written as tostring formats them. For a tensor "
       "with more than 1000 elements, or with several dimensions and more than 32 elements, only "
       "the type and shape are written. After an evaluation with an eval_predictor, fit saves "
       "{example = ..., pred = ...} of each example this way."}};
}

}  // namespace redco::lua
