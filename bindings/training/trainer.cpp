// The Lua class redco.Trainer.
#include <redco/plan.h>
#include <redco/trainer.h>

#include "callbacks.h"
#include "check.h"
#include "optim.h"
#include "plan.h"
#include "reported_runs.h"
#include "state/arguments.h"
#include "state/collector.h"
#include "state/object.h"
#include "state/plain_tree.h"
#include "state/tensor.h"
#include "state/values.h"
#include "step_functions.h"
#include "torch/sharding.h"
#include "training_objects.h"

#include <optional>
#include <string>
#include <tuple>
#include <utility>

namespace redco::lua {

namespace {

constexpr const char* laid_out_by_trainer = "the Trainer shards the tensors it is given; omit it";

// Reads the table that `push_state` writes. Missing fields have their initial values.
std::optional<LossScale> check_loss_scale_argument(NamedArguments& args) {
  lua_State* L = args.state();
  return balanced(L, [&]() -> std::optional<LossScale> {
    args.push("loss_scale");
    if (lua_isnil(L, -1)) return std::nullopt;
    NamedArguments fields(L, lua_gettop(L), args.function() + ": loss_scale");
    LossScale result;
    result.scale = fields.get<double>("scale", result.scale);
    result.good_steps = fields.get<int64_t>("good_steps", result.good_steps);
    fields.finish();
    return result;
  });
}

// Reads "bfloat16", "autocast:bfloat16" or "float8".
void read_compute_dtype(NamedArguments& args, TrainerOptions& options) {
  const std::string prefix = "autocast:";
  const auto given = args.get<std::string>("compute_dtype", "float32");
  if (given == "float8") {
    options.compute_dtype = at::kBFloat16;
    options.float8_products = true;
    return;
  }
  bool is_autocast = given.starts_with(prefix);
  auto dtype = parse_dtype(is_autocast ? given.substr(prefix.size()) : given);
  bool is_known = dtype && (at::isReducedFloatingType(*dtype)
                                ? *dtype == at::kHalf || *dtype == at::kBFloat16
                                : !is_autocast && (*dtype == at::kFloat || *dtype == at::kDouble));
  require(is_known, args.function(), ": compute_dtype = \"", given,
          "\" is not one of \"float32\", \"float64\", \"bfloat16\", \"float16\", \"float8\", "
          "\"autocast:bfloat16\" and \"autocast:float16\"");
  if (is_autocast)
    options.autocast_dtype = dtype;
  else
    options.compute_dtype = *dtype;
}

// Reads `custom_state`, a table that stays the script's.
void read_custom_state(NamedArguments& args, LuaTrainer& trainer, TrainerOptions& options) {
  lua_State* L = args.state();
  balanced(L, [&] {
    const std::string what = args.function() + ": custom_state";
    args.push("custom_state");
    if (lua_isnil(L, -1)) return;
    require(lua_istable(L, -1), what, ": expected a table, got ", described(L, lua_gettop(L)));
    trainer.custom_state = Ref(L, -1);
    options.custom_state = [table = trainer.custom_state, what] {
      lua_State* state = table.state();
      return balanced(state, [&] {
        table.push();
        return check_tree(state, lua_gettop(state), what.c_str());
      });
    };
    options.set_custom_state = [table = trainer.custom_state](const Tree& saved) {
      lua_State* state = table.state();
      balanced(state, [&] {
        table.push();
        int own = lua_gettop(state);
        for (lua_pushnil(state); lua_next(state, own);) {
          lua_pop(state, 1);
          lua_pushvalue(state, -1);
          lua_pushnil(state);
          lua_rawset(state, own);
        }
        push_tree(state, saved);
        int from = lua_gettop(state);
        for (lua_pushnil(state); lua_next(state, from); lua_pop(state, 1)) {
          lua_pushvalue(state, -2);
          lua_pushvalue(state, -2);
          lua_rawset(state, own);
        }
      });
    };
  });
}

int make_trainer(lua_State* L) {
  NamedArguments args(L, 1, "redco.Trainer");
  args.push_required("deployer");
  auto deployer = check_object<LuaDeployer>(L, lua_gettop(L), "redco.Trainer: deployer");
  auto object = std::make_shared<LuaTrainer>();
  object->collator = check_collator(args);
  object->collate = check_collate(args);
  object->apply_fn = args.get<Ref>("apply_fn", {});
  Ref loss_fn = args.required<Ref>("loss_fn");
  TrainerOptions options;
  options.deployer = deployer->deployer;
  options.collate = object->collate;
  options.params = args.required<Tree>("params");
  read_custom_state(args, *object, options);
  const OfScript own{object->apply_fn, object->custom_state};
  check_parameter_order(loss_fn, "redco.Trainer: loss_fn",
                        {"rng", "state", "params", "batch", "is_training"});
  options.loss_fn = make_loss_fn(loss_fn, own);
  options.optimizer = check_optimizer(args, "optimizer");
  options.opt_state = args.optional<Tree>("opt_state");
  options.step = args.get<int64_t>("step", 0);
  read_compute_dtype(args, options);
  options.loss_scale = check_loss_scale_argument(args);
  options.lr_schedule_fn = check_schedule_argument(args, "lr_schedule_fn");
  options.accumulate_grad_batches = args.optional<int64_t>("accumulate_grad_batches");
  Ref train_step_fn = args.get<Ref>("train_step_fn", {});
  if (train_step_fn)
    check_parameter_order(train_step_fn, "redco.Trainer: train_step_fn",
                          {"rng", "state", "batch", "defaults"});
  options.train_step_fn = make_train_step_fn(train_step_fn, loss_fn, own);
  options.params_sharding_rules = check_sharding_rules(args);
  options.recompute = parse_recompute(args.get<std::string>("recompute", "none"), "redco.Trainer");
  options.offload_optimizer = args.get<bool>("offload_optimizer", false);
  options.before_batch = [loss_fn] { collect_before_batch(loss_fn.state()); };
  args.refuse({"params_sharded", "opt_state_sharded"}, laid_out_by_trainer);
  if (auto info = args.optional<Tree>("last_ckpt_info")) options.last_ckpt_info = *info;
  args.finish();
  keep_arguments(L, 1, *object);
  TrainerOptions kept = options;
  kept.params = {};
  kept.opt_state.reset();
  object->options = std::make_shared<const TrainerOptions>(std::move(kept));
  auto trainer = std::make_unique<Trainer>(std::move(options));
  if (const auto& runs = context(L).reported_runs)
    object->trainer = runs->watched(std::move(trainer));
  else
    object->trainer = std::move(trainer);
  push_object(L, std::move(object));
  return 1;
}

std::shared_ptr<LuaTrainer> check_trainer(lua_State* L, const char* method) {
  return check_object<LuaTrainer>(L, 1, method);
}

// The arguments of a pass over one set of examples.
struct Pass {
  Dataset examples;
  int64_t batch_size;
  std::string desc;
};

Pass read_pass(lua_State* L, const LuaTrainer& trainer, const char* method, const char* desc) {
  NamedArguments args(L, 2, method);
  args.push_required("examples");
  Examples examples(L, -1, args.function() + ": examples");
  Pass pass;
  pass.batch_size = args.required<int64_t>("per_device_batch_size");
  pass.desc = args.get<std::string>("desc", desc);
  args.finish();
  pass.examples = make_dataset(examples, trainer.collator);
  return pass;
}

int train(lua_State* L) {
  auto object = check_trainer(L, "Trainer:train");
  Pass pass = read_pass(L, *object, "Trainer:train", "Training");
  if (is_checking(L)) return check_and_end(L, 2, *object);
  if (PlanMode::is_on()) {
    plan_and_end(L, *object, pass.examples, pass.batch_size, std::nullopt);
    return 0;
  }
  BatchSizes sizes = with_layout(L, *object, pass.examples, {pass.batch_size, std::nullopt});
  int64_t n_copies = object->trainer->deployer()->mesh()->size(Mesh::batch);
  require(
      !sizes.global || *sizes.global == *sizes.per_device * n_copies,
      "Trainer:train: the layout that fits has several micro-batches in a step: use Trainer:fit "
      "with global_batch_size = ",
      sizes.global.value_or(0));
  object->trainer->train(pass.examples, *sizes.per_device, pass.desc);
  return 0;
}

int train_step(lua_State* L) {
  auto object = check_trainer(L, "Trainer:train_step");
  NamedArguments args(L, 2, "Trainer:train_step");
  args.push_required("examples");
  Examples examples(L, -1, args.function() + ": examples");
  auto batch_size = args.optional<int64_t>("per_device_batch_size");
  args.finish();
  if (is_checking(L)) return check_and_end(L, 2, *object);
  Dataset dataset = make_dataset(examples, object->collator);
  if (PlanMode::is_on()) {
    plan_and_end(L, *object, dataset, batch_size, dataset.size);
    lua_newtable(L);
    return 1;
  }
  BatchSizes sizes = with_layout(L, *object, dataset, {batch_size, dataset.size});
  Metrics metrics = object->trainer->train_step(dataset, sizes.per_device);
  lua_createtable(L, 0, int(metrics.size()));
  for (const auto& [name, value] : metrics) {
    lua_pushnumber(L, value);
    lua_setfield(L, -2, name.c_str());
  }
  return 1;
}

int eval_loss(lua_State* L) {
  auto object = check_trainer(L, "Trainer:eval_loss");
  Pass pass = read_pass(L, *object, "Trainer:eval_loss", "Evaluating");
  lua_pushnumber(L, object->trainer->eval_loss(pass.examples, pass.batch_size, pass.desc));
  return 1;
}

int setup_running_step(lua_State* L) {
  auto object = check_trainer(L, "Trainer:setup_running_step");
  NamedArguments args(L, 2, "Trainer:setup_running_step");
  args.push_required("examples");
  Dataset examples =
      make_dataset(Examples(L, -1, args.function() + ": examples"), object->collator);
  auto batch_size = args.required<int64_t>("per_device_batch_size");
  args.finish();
  object->trainer->setup_running_step(examples, batch_size);
  return 0;
}

int set_train_state(lua_State* L) {
  auto object = check_trainer(L, "Trainer:set_train_state");
  NamedArguments args(L, 2, "Trainer:set_train_state");
  SetTrainStateOptions options;
  options.params = args.required<Tree>("params");
  options.opt_state = args.optional<Tree>("opt_state");
  options.step = args.get<int64_t>("step", 0);
  options.loss_scale = check_loss_scale_argument(args);
  if (args.has("optimizer")) options.optimizer = check_optimizer(args, "optimizer");
  if (auto apply_fn = args.optional<Ref>("apply_fn")) object->apply_fn = *apply_fn;
  args.refuse({"params_sharded", "opt_state_sharded"}, laid_out_by_trainer);
  args.finish();
  object->trainer->set_train_state(std::move(options));
  return 0;
}

int save_ckpt_of_training(lua_State* L) {
  auto object = check_trainer(L, "Trainer:save_ckpt");
  NamedArguments args(L, 2, "Trainer:save_ckpt");
  auto name = args.required<std::string>("ckpt_name");
  auto epoch_idx = args.optional<int64_t>("epoch_idx");
  SaveCkptOptions options;
  options.save_opt_state = args.get<bool>("save_opt_state", true);
  options.save_frozen = args.get<bool>("save_frozen", false);
  options.float_dtype = args.optional<c10::ScalarType>("float_dtype");
  args.finish();
  object->trainer->save_ckpt(name, epoch_idx, options);
  return 0;
}

int get_default_predictor(lua_State* L) {
  auto object = check_trainer(L, "Trainer:get_default_predictor");
  NamedArguments args(L, 2, "Trainer:get_default_predictor");
  Ref pred_fn = args.required<Ref>("pred_fn");
  Ref output_fn = args.get<Ref>("output_fn", {});
  args.finish();
  const Trainer& trainer = *object->trainer;
  PredictorOptions options;
  options.deployer = trainer.deployer();
  options.collate = object->collate;
  options.compute_dtype = trainer.compute_dtype();
  options.autocast_dtype = trainer.autocast_dtype();
  options.params_sharding_rules = trainer.params_sharding_rules();
  push_predictor(L, object->collator, pred_fn, output_fn, std::move(options));
  return 1;
}

void push_held(lua_State* L, const char* name, const HeldBytes& held) {
  lua_createtable(L, 0, 2);
  push_integer(L, held.here);
  lua_setfield(L, -2, "here");
  push_integer(L, held.whole);
  lua_setfield(L, -2, "whole");
  lua_setfield(L, -2, name);
}

int memory(lua_State* L) {
  TrainerMemory held = check_trainer(L, "Trainer:memory")->trainer->memory();
  lua_createtable(L, 0, 3);
  push_held(L, "params", held.params);
  push_held(L, "grads", held.grads);
  push_held(L, "opt_state", held.opt_state);
  return 1;
}

int trainer_field(lua_State* L) {
  auto object = check_trainer(L, "Trainer");
  std::string name = luaL_checkstring(L, 2);
  if (name == "step") {
    push_integer(L, object->trainer->step());
  } else if (name == "state") {
    push_state(L, object->trainer->state(), {object->apply_fn, object->custom_state});
  } else if (name == "params") {
    push_tree(L, object->trainer->state().params);
  } else {
    fail("a Trainer has no '", name, "'; its fields are step, state and params");
  }
  return 1;
}

}  // namespace

constexpr const char* trainer_text =
    R"text(Trainer{deployer, collate_fn, loss_fn, params, optimizer, apply_fn = nil,
  opt_state = nil, custom_state = nil, step = 0, last_ckpt_info = nil, compute_dtype = "float32",
  loss_scale = nil, lr_schedule_fn = nil, accumulate_grad_batches = nil, train_step_fn = nil,
  collate = "global", context_dims: table = nil, params_sharding_rules = nil, recompute = "none",
  offload_optimizer = false, num_workers = 0, prefetch_factor = 2} -> Trainer
Creates a Trainer, which trains a tree of parameters in place.
  collate_fn: collate_fn(examples) returns a batch, a table of tensors, from a list of examples.
    A loss_fn may change it in place: the batch that it gets is a copy
  loss_fn: loss_fn(rng, state, params, batch, is_training) returns the mean loss of a batch, and the
    weight of that mean (default: the number of examples), by which micro-batches are combined. A
    third value is a table of metrics of the training step: numbers and tensors of one element,
    averaged as the loss is, or tensors [2] of a sum and a count. `rng` gives each example the same
    numbers however the batch is split; operators without a generator, such as torch.dropout, draw
    from it too. `state` has apply_fn, params, opt_state, custom_state and step (optimizer steps)
  params: a tree of tensors; the floating-point ones are trained
  optimizer: one of `redco.optim`
  opt_state: the optimizer state of a checkpoint; by default a new one
  custom_state: a table of the script, a tree of tensors, numbers, strings and booleans, that
    hooks and train_step_fn may change. Each checkpoint contains it; resume with
    ckpt.custom_state. When on_nonfinite = "restore" goes back, it is filled again
  step: the optimizer steps already done
  apply_fn: a function that loss_fn receives as state.apply_fn, for example a model
  last_ckpt_info: the second result of `Deployer:load_ckpt` or `Deployer:load_last_ckpt`; with the
    params and opt_state of that checkpoint, the run resumes at its step and its place in the epoch
  compute_dtype: the dtype to which floating-point params and floating-point tensors of the batch
    are cast for loss_fn, train_step_fn and the pred_fn of the default predictor: "float32",
    "float64", "bfloat16", "float16" or "float8". Tensors of float16, bfloat16, float32 and float64 are all
    cast; integers, booleans and complex numbers are not. The params trained, their gradients and
    opt_state keep their dtype. "autocast:bfloat16" and "autocast:float16" cast to float32 and run
    loss_fn under torch.autocast, which computes products, convolutions and attention in 16 bits,
    and norms, softmax, losses, exponents, logarithms, powers and sums in float32. With float16 the
    loss is multiplied by a scale before backward, and the gradients are divided by it. A step with
    gradients that are not all finite is skipped (params, opt_state and step stay) and halves the
    scale; 2000 good steps in a row double it. "float8" is "bfloat16" with products of 8 bits in
    `nn.linear` and models, where rows, inputs and outputs are multiples of 16 and there are at
    least 128 inputs and outputs: x and the weight as float8_e4m3fn, gradients as float8_e5m2, each
    with a scale by its largest element, and sums in float32. The heads of losses stay in 16 bits.
    It needs a GPU of compute capability 8.9 (Ada, Hopper); a CPU computes the same numbers slowly.
    There is no second derivative
  loss_scale: {scale = 65536, good_steps = 0}, the initial scale. The metric loss_scale is the scale
    of a step, state.loss_scale that of the next one
  lr_schedule_fn: the learning rate to log if the optimizer does not report it; it does not affect
    training
  accumulate_grad_batches: micro-batches of one optimizer step (gradient accumulation); the default
    is 1, or follows from fit's global_batch_size
  train_step_fn: train_step_fn(rng, state, batch, defaults) replaces the step. It calls
    defaults.value_and_grad(f) and defaults.apply_gradients(grads) and returns a table of metrics;
    its gradients are not multiplied by the scale. It may apply gradients several times, of other
    parameters or of the same: together they are one step
  collate: with "global" each process collates the whole batch and keeps its rows. With "local" it
    collates only the examples of its rows. Both give the same result if collate_fn treats examples
    independently: tensors whose first dimension is the number of examples must agree in the other
    dimensions on all processes (pad to a fixed length), all other tensors, numbers and booleans
    must be equal, and strings may differ. A process without examples in a small last batch collates
    the first one
  context_dims: with n_context_shards, the dimension of each tensor of the batch that is split over
    them, by dotted name: {input_ids = 1, pixel_values = false}. By default dimension 1 of those that
    have a row for each example. It changes no result, only the time and memory of a step
  params_sharding_rules: a list of {pattern, placement} for parameters by dotted name,
    {"*.q_proj.weight", 0}. A placement is the dimension that is split over the model shards,
    "replicate" or {dim = 1, block = 768, grain = 64}: the dimension consists of blocks of this
    length, or of the lengths in a list, each of which is split, between units of `grain` elements.
    `block` and `grain` may be left out. The first match counts. Parameters without a match are
    planned from calls of loss_fn without values
  recompute: what the layers of `redco.models`, and what the script calls by `nn.block`, keep for the
    backward pass, which computes the rest again. "blocks": their inputs, which takes about a third
    more time. "selective": also the results of products with weights and of attention over many
    positions (all that took 256 floating-point operations a byte), which takes little more time;
    layers of LLaMA then keep about three quarters of what "none" keeps
  offload_optimizer: whether the optimizer's state stays in the memory of the host, where a GPU reads
    and writes it over its link, once a step; with ZeRO below 3 also float32 parameters of which
    compute_dtype makes copies of 16 bits. AdamW needs 8 or 12 bytes less of the GPU for each
    parameter, and a step of an 8 B model takes about two seconds more on PCIe 5. Numbers stay the
    same. On a CPU it has no effect
  num_workers: the number of threads that run collate_fn ahead of training. Each has a separate Lua
    state with copies of collate_fn and the examples. collate_fn is copied now, the examples when a
    run first uses them; later changes of variables have no effect there. They may use numbers,
    strings, booleans, tables, functions, modules (which are loaded again), the standard globals,
    and tensors, tokenizers and data sets, which are shared. Any other value raises an error that
    names it. A list of examples is copied to each worker; a data set reads its files there. Random
    numbers of collate_fn, also from math.random, depend only on the seed, the epoch and the step,
    and are the same for any num_workers
  prefetch_factor: the maximum number of batches that each of these threads prepares ahead)text";

void add_trainer(lua_State* L) {
  add_hooks(L);
  make_object_type<LuaTrainer>(
      L,
      "Trainer {params, state: table, step}\n"
      "Trains parameters, evaluates and saves them.\n"
      "  state: the argument of loss_fn: apply_fn, params, opt_state, custom_state and step\n"
      "  step: the number of optimizer steps done",
      {{"fit", fit, fit_text},
       {"train", train,
        "train(self, {examples, per_device_batch_size, desc = \"Training\"})\n"
        "Trains for one pass over the examples, without evaluation and checkpoints. `desc` names "
        "the "
        "pass on the progress line."},
       {"train_step", train_step,
        "train_step(self, {examples, per_device_batch_size = nil}) -> table\n"
        "Performs one optimizer step on these examples, for a loop in a script, and returns its "
        "metrics: loss, grad_norm and lr, or those of train_step_fn. They are not logged. Examples "
        "beyond per_device_batch_size become further micro-batches; by default there is one."},
       {"plan", plan, plan_text},
       {"eval_loss", eval_loss,
        "eval_loss(self, {examples, per_device_batch_size, desc = \"Evaluating\"}) -> number\n"
        "Returns the mean loss of all examples, from loss_fn with is_training = false. Batches "
        "count "
        "by the weights that loss_fn returns."},
       {"save_ckpt", save_ckpt_of_training,
        "save_ckpt(self, {ckpt_name, epoch_idx = nil, save_opt_state = true, save_frozen = false, "
        "float_dtype = nil})\n"
        "Writes the checkpoint workdir/ckpts/ckpt_name and waits until it is written. A run can "
        "resume from it. `epoch_idx` is the number of a finished epoch. `save_frozen` as in "
        "`fit`."},
       {"setup_running_step", setup_running_step,
        "setup_running_step(self, {examples, per_device_batch_size})\n"
        "Shards the parameters according to one call of loss_fn with the first batch. `fit`, "
        "`train` and `eval_loss` do this themselves."},
       {"set_train_state", set_train_state,
        "set_train_state(self, {params, opt_state = nil, step = 0, loss_scale = nil, optimizer = "
        "nil, apply_fn = nil})\n"
        "Restarts training from a copy of `params`."},
       {"memory", memory,
        "memory(self) -> {params, grads, opt_state}\n"
        "Returns the bytes of each: `here`, on this device, and `whole`, without sharding. "
        "Gradients exist during a step."},
       {"get_default_predictor", get_default_predictor,
        "get_default_predictor(self, {pred_fn, output_fn = nil}) -> Predictor\n"
        "Returns a Predictor with the Trainer's deployer, collate_fn, workers, collate, "
        "compute_dtype and params_sharding_rules. With compute_dtype = \"bfloat16\", pred_fn "
        "returns bfloat16 unless it casts."}},
      trainer_field);
  register_functions(L, "redco.", {{"Trainer", make_trainer, trainer_text}});
  add_plan(L);
  add_check(L);
}

}  // namespace redco::lua
