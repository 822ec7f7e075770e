// The Lua class redco.Predictor.
#include <redco/predictor.h>

#include "callbacks.h"
#include "state/arguments.h"
#include "state/object.h"
#include "state/tensor.h"
#include "state/values.h"
#include "torch/sharding.h"
#include "training_objects.h"

namespace redco::lua {

namespace {

PredFn make_pred_fn(const Ref& function) {
  return [function](at::Generator rng, const Tree& params, const Tree& batch) {
    lua_State* L = function.state();
    return balanced(L, [&] {
      luaL_checkstack(L, 6, "pred_fn");
      function.push();
      push_generator(L, std::move(rng));
      push_tree(L, params);
      push_tree(L, batch);
      call(L, 3, 1);
      return check_tree(L, lua_gettop(L), "what pred_fn returned");
    });
  };
}

OutputFn make_output_fn(const Ref& function) {
  if (!function) return {};
  return [function](const Tree& batch_preds) {
    lua_State* L = function.state();
    return balanced(L, [&] {
      function.push();
      push_tree(L, batch_preds);
      call(L, 1, 1);
      int64_t size = check_list(L, lua_gettop(L), "output_fn: its result");
      std::vector<Tree> outputs;
      for (int64_t i = 1; i <= size; ++i) {
        lua_rawgeti(L, -1, int(i));
        outputs.push_back(check_tree(L, lua_gettop(L), "what output_fn returned"));
        lua_pop(L, 1);
      }
      return outputs;
    });
  };
}

int make_predictor(lua_State* L) {
  NamedArguments args(L, 1, "redco.Predictor");
  args.push_required("deployer");
  auto deployer = check_object<LuaDeployer>(L, lua_gettop(L), "redco.Predictor: deployer");
  Collator collator = check_collator(args);
  Collate collate = check_collate(args);
  Ref pred_fn = args.required<Ref>("pred_fn");
  Ref output_fn = args.get<Ref>("output_fn", {});
  PredictorOptions options;
  options.deployer = deployer->deployer;
  options.collate = collate;
  options.params_sharding_rules = check_sharding_rules(args);
  args.finish();
  push_predictor(L, collator, pred_fn, output_fn, std::move(options));
  return 1;
}

int predict(lua_State* L) {
  auto self = check_object<LuaPredictor>(L, 1, "Predictor:predict");
  NamedArguments args(L, 2, "Predictor:predict");
  args.push_required("examples");
  Examples examples(L, lua_gettop(L), "Predictor:predict: examples");
  int64_t batch_size = args.required<int64_t>("per_device_batch_size");
  Tree params = args.required<Tree>("params");
  std::string desc = args.get<std::string>("desc", "Predicting");
  args.refuse({"params_replicated", "params_sharded"},
              "the parameters already have a placement; omit it");
  args.finish();
  std::vector<Tree> preds =
      self->predictor.predict(make_dataset(examples, self->collator), batch_size, params, desc);
  lua_createtable(L, int(preds.size()), 0);
  for (size_t i = 0; i < preds.size(); ++i) {
    push_tree(L, preds[i]);
    lua_rawseti(L, -2, int(i) + 1);
  }
  return 1;
}

}  // namespace

void push_predictor(lua_State* L, const Collator& collator, const Ref& pred_fn,
                    const Ref& output_fn, PredictorOptions options) {
  check_parameter_order(pred_fn, "pred_fn", {"rng", "params", "batch"});
  options.pred_fn = make_pred_fn(pred_fn);
  options.output_fn = make_output_fn(output_fn);
  push_object(
      L, std::make_shared<LuaPredictor>(LuaPredictor{Predictor(std::move(options)), collator}));
}

constexpr const char* predictor_text = R"text(Predictor{deployer, collate_fn, pred_fn,
  output_fn = nil, collate = "global", context_dims: table = nil, params_sharding_rules = nil,
  num_workers = 0, prefetch_factor = 2} -> Predictor
Creates a Predictor, which predicts from a list or a data set of examples, one batch at a time.
  collate_fn: collate_fn(examples) returns a batch, a table of tensors; collate_fn, collate,
    context_dims, num_workers, prefetch_factor and params_sharding_rules are as in `redco.Trainer`
  pred_fn: pred_fn(rng, params, batch) returns the predictions of a batch, a tree of tensors; `rng`
    is as in `redco.Trainer`
  output_fn: output_fn(batch_preds) returns a list of them, one for each example; by default every
    tensor is split along its first dimension)text";

void add_predictor(lua_State* L) {
  make_object_type<LuaPredictor>(
      L,
      "Predictor {}\n"
      "Predicts from examples, batch by batch.",
      {{"predict", predict,
        "predict(self, {examples, per_device_batch_size, params, desc = \"Predicting\"}) -> list\n"
        "Returns a list with one prediction for each example, in their order. `desc` is shown on "
        "the "
        "progress line. Parameters that no Trainer has sharded are sharded for this call."}});
  register_functions(L, "redco.", {{"Predictor", make_predictor, predictor_text}});
}

}  // namespace redco::lua
