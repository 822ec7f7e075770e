// Trainer:fit and its options.
#include <redco/plan.h>
#include <redco/trainer.h>

#include "callbacks.h"
#include "check.h"
#include "plan.h"
#include "state/arguments.h"
#include "state/object.h"
#include "state/plain_tree.h"
#include "state/values.h"
#include "training_objects.h"

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace redco::lua {

namespace {

// A limit or an interval. 0 turns it off, so that a script's options can.
template <class T>
std::optional<T> unless_zero(NamedArguments& args, const char* name) {
  auto value = args.optional<T>(name);
  return value == T(0) ? std::nullopt : value;
}

// Reads `train_examples`: examples, or a function of the epoch that returns them.
void read_train_examples(NamedArguments& args, const Collator& collator, FitOptions& options) {
  lua_State* L = args.state();
  return balanced(L, [&] {
    const std::string name = args.function() + ": train_examples";
    args.push_required("train_examples");
    if (!lua_isfunction(L, -1)) {
      options.train_examples = make_dataset(Examples(L, -1, name), collator);
      return;
    }
    options.train_examples = [function = Ref(L, -1), collator, name](int64_t epoch_idx) {
      lua_State* state = function.state();
      return balanced(state, [&] {
        function.push();
        push_integer(state, epoch_idx);
        call(state, 1, 1);
        return make_dataset(Examples(state, -1, name + ": its result"), collator);
      });
    };
  });
}

// Returns {example = ..., pred = ...} for each example and its prediction.
Tree paired_outputs(lua_State* L, const Examples& examples, int preds) {
  Tree::List outputs;
  for (int64_t i = 0; i < int64_t(lua_objlen(L, preds)); ++i) {
    examples.push({i});
    lua_rawgeti(L, -1, 1);
    lua_rawgeti(L, preds, int(i) + 1);
    outputs.push_back(Tree::Dict{{"example", plain_tree(L, -2)}, {"pred", plain_tree(L, -1)}});
    lua_pop(L, 3);
  }
  return outputs;
}

// Combines `eval_predictor` and `eval_metric_fn` into one function of the data set.
EvalMetricsFn make_eval_metrics(NamedArguments& args, LuaTrainer& trainer,
                                const std::optional<Examples>& eval_examples, int64_t batch_size) {
  lua_State* L = args.state();
  return balanced(L, [&]() -> EvalMetricsFn {
    args.push("eval_predictor");
    bool has_predictor = !lua_isnil(L, -1);
    Ref metric_fn = args.get<Ref>("eval_metric_fn", {});
    require(has_predictor == bool(metric_fn), args.function(),
            ": eval_predictor and eval_metric_fn belong together; only one is given");
    if (!has_predictor) return {};
    require(eval_examples.has_value(), args.function(),
            ": eval_predictor is given without eval_examples");
    auto predictor = check_object<LuaPredictor>(L, -1, args.function() + ": eval_predictor");
    return [predictor, metric_fn, all = *eval_examples, batch_size,
            &trainer](const Dataset& examples) {
      Dataset readable = head(make_dataset(all, predictor->collator), examples.size);
      std::vector<Tree> preds =
          predictor->predictor.predict(readable, batch_size, trainer.trainer->state().params);
      lua_State* state = metric_fn.state();
      return balanced(state, [&] {
        luaL_checkstack(state, 12, "eval_metric_fn");
        lua_createtable(state, int(preds.size()), 0);
        for (size_t i = 0; i < preds.size(); ++i) {
          push_tree(state, preds[i]);
          lua_rawseti(state, -2, int(i) + 1);
        }
        int preds_list = lua_gettop(state);
        metric_fn.push();
        all.push_head(examples.size);
        lua_pushvalue(state, preds_list);
        call(state, 2, 1);
        EvalResults results;
        results.metrics = check_metrics(state, lua_gettop(state), "eval_metric_fn: its result");
        if (trainer.trainer->deployer()->run_log().writes_files())
          results.outputs = paired_outputs(state, all, preds_list);
        return results;
      });
    };
  });
}

// Reads {steps = {10, 12}}.
std::optional<ProfileOptions> check_profile(NamedArguments& args) {
  lua_State* L = args.state();
  return balanced(L, [&]() -> std::optional<ProfileOptions> {
    const std::string what = args.function() + ": profile";
    args.push("profile");
    if (lua_isnil(L, -1)) return std::nullopt;
    NamedArguments fields(L, lua_gettop(L), what);
    fields.push("steps");
    int steps = lua_gettop(L);
    fields.finish();
    require(lua_istable(L, steps) && lua_objlen(L, steps) == 2, what,
            ": expected the first and the last step to trace, {10, 12}; got ", described(L, steps));
    lua_rawgeti(L, steps, 1);
    lua_rawgeti(L, steps, 2);
    return ProfileOptions{check_integer(L, -2, (what + ": the first step").c_str()),
                          check_integer(L, -1, (what + ": the last step").c_str())};
  });
}

// Reads an argument that must be one of the given words; the first one is the default.
template <class Choice>
Choice check_choice(NamedArguments& args, const char* name,
                    const std::vector<std::pair<std::string, Choice>>& choices) {
  auto given = args.get<std::string>(name, choices.front().first);
  std::string all;
  for (const auto& [word, choice] : choices) {
    if (word == given) return choice;
    all += (all.empty() ? "\"" : ", \"") + word + "\"";
  }
  fail(args.function(), ": ", name, " = \"", given, "\" is not one of ", all);
}

std::vector<std::string> check_names(NamedArguments& args, const char* name) {
  lua_State* L = args.state();
  return balanced(L, [&] {
    std::vector<std::string> names;
    args.push(name);
    if (lua_isnil(L, -1)) return names;
    std::string what = args.function() + ": " + name + ": expected a list of names, got ";
    require(lua_istable(L, -1), what, described(L, lua_gettop(L)));
    for (int i = 1; i <= int(lua_objlen(L, -1)); ++i) {
      lua_rawgeti(L, -1, i);
      require(lua_type(L, -1) == LUA_TSTRING, what, described(L, lua_gettop(L)), " in it");
      names.push_back(lua_tostring(L, -1));
      lua_pop(L, 1);
    }
    return names;
  });
}

std::optional<EarlyStopping> check_early_stopping(NamedArguments& args) {
  lua_State* L = args.state();
  return balanced(L, [&]() -> std::optional<EarlyStopping> {
    args.push("early_stopping");
    if (lua_isnil(L, -1)) return std::nullopt;
    NamedArguments fields(L, lua_gettop(L), args.function() + ": early_stopping");
    EarlyStopping rule;
    rule.metric = fields.get<std::string>("metric", rule.metric);
    rule.maximize = check_choice<bool>(fields, "mode", {{"min", false}, {"max", true}});
    rule.patience = fields.get<int64_t>("patience", rule.patience);
    rule.min_delta = fields.get<double>("min_delta", rule.min_delta);
    fields.finish();
    return rule;
  });
}

void read_saving(NamedArguments& args, FitOptions& options) {
  options.save_ckpt_every_k_epochs = unless_zero<int64_t>(args, "save_ckpt_every_k_epochs");
  options.save_ckpt_every_k_steps = unless_zero<int64_t>(args, "save_ckpt_every_k_steps");
  options.save_last_ckpt = args.get<bool>("save_last_ckpt", false);
  options.save_argmin_ckpt_by_metrics = check_names(args, "save_argmin_ckpt_by_metrics");
  options.save_argmax_ckpt_by_metrics = check_names(args, "save_argmax_ckpt_by_metrics");
  options.save_opt_states = args.get<bool>("save_opt_states", true);
  options.save_frozen = args.get<bool>("save_frozen", false);
  options.save_float_dtype = args.optional<c10::ScalarType>("save_float_dtype");
  options.keep_last_k_ckpts = args.optional<int64_t>("keep_last_k_ckpts");
  options.save_in_background = args.get<bool>("save_in_background", true);
  options.on_save_error = check_choice<OnSaveError>(
      args, "on_save_error", {{"stop", OnSaveError::stop}, {"continue", OnSaveError::go_on}});
}

}  // namespace

const char* const fit_text =
    R"text(fit(self, {train_examples, per_device_batch_size, n_epochs, shuffle = true,
  global_batch_size = nil, max_steps = nil, max_seconds = nil, eval_examples = nil,
  eval_per_device_batch_size = nil, eval_loss = true, eval_predictor = nil, eval_metric_fn = nil,
  eval_sanity_check = true, eval_every_k_steps = nil, save_ckpt_every_k_epochs = nil,
  save_ckpt_every_k_steps = nil, save_last_ckpt = false, save_argmin_ckpt_by_metrics = nil,
  save_argmax_ckpt_by_metrics = nil, save_opt_states = true, save_frozen = false,
  save_float_dtype = nil, keep_last_k_ckpts = nil, save_in_background = true, on_save_error = "stop",
  early_stopping = nil, on_nonfinite = "stop",
  on_step = nil, on_eval = nil, on_epoch = nil, on_save = nil, profile = nil})
Trains for n_epochs, or until `step` reaches max_steps or max_seconds are over. Evaluates after each
epoch and every eval_every_k_steps. A limit or an interval of 0 is none. SIGTERM and SIGUSR1 end the
run after the current step, with the checkpoint `last`. They, and max_seconds, also end an evaluation
after its current batch; a run that resumes from the checkpoint evaluates first.

Checkpoints are folders of workdir/ckpts: epoch_I, step_N, last (after each epoch and at the end),
and min_METRIC and max_METRIC (of the evaluation in which the metric was best). They are written in
the background, one at a time, from copies in memory.

The log has a line for each evaluation, with the best values so far marked, and at the end the time,
the best values, the checkpoints and how to plot the run. The best is the lowest of the metrics with
`loss`, `perplexity` or `error` in their names, and the highest of those with `accuracy`, `bleu`,
`chrf`, `rouge`, `exact_match` or `f1`. For others save_argmin_ckpt_by_metrics,
save_argmax_ckpt_by_metrics and early_stopping say which it is.

The step metrics in metrics.jsonl are the time of the step, the time spent waiting for the batch and
in collectives, examples and tokens (elements of a batch's input_ids) per second, memory in bytes,
and mfu, the fraction of the device's peak matrix product speed that the model uses, unless the peak
was measured too low. On several processes, gathered_bytes is the number of bytes that process 0
sent in the step because operators had to gather their arguments; redco-lua --report-sharding names
these operators.
  train_examples: a list, a data set (`redco.data.dataset`), a tensor of rows, or a function of
    epoch_idx (from 0) that returns one of these
  per_device_batch_size: examples of one micro-batch on each device
  n_epochs: passes over train_examples
  shuffle: each epoch visits the examples in another order, which depends on the seed and the epoch;
    false keeps their order
  global_batch_size: examples of one optimizer step; the default is those of a micro-batch, times
    the Trainer's accumulate_grad_batches
  max_steps: optimizer steps, counted from the start of training as `step` is
  max_seconds: seconds since the call of fit
  eval_examples: what evaluations use; without them there are none
  eval_per_device_batch_size: the default is per_device_batch_size
  eval_loss: evaluates the mean of loss_fn
  eval_predictor: predicts eval_examples for eval_metric_fn
  eval_metric_fn: eval_metric_fn(examples, preds) returns a table of numbers. Both arguments are
    lists: the examples, even if eval_examples is a data set, and the prediction of eval_predictor
    for each
  eval_sanity_check: evaluates the first batch before the first epoch
  save_ckpt_every_k_epochs, save_ckpt_every_k_steps: write the checkpoints epoch_I and step_N
  save_last_ckpt: writes the checkpoint `last`
  save_argmin_ckpt_by_metrics: names of the metrics whose lowest value saves min_METRIC
  save_argmax_ckpt_by_metrics: names of the metrics whose highest value saves max_METRIC
  save_opt_states: saves the optimizer state, which resuming needs
  save_frozen: saves also the params that are not trained and came from files of weights, such as the
    base of adapters. Without it a checkpoint has their names, checksums and files, and
    `Deployer:load_last_ckpt` reads them there again
  save_float_dtype: the dtype of floating-point parameters in checkpoints
  keep_last_k_ckpts: the number of newest epoch_I, and of newest step_N, to keep
  save_in_background: training goes on while a checkpoint is written
  on_save_error: if a checkpoint, metrics or results cannot be written, because the disk is full,
    say, "stop" ends the run and "continue" logs the error
  early_stopping: {metric = "loss", mode = "min", patience = 3, min_delta = 0} ends the run after
    `patience` evaluations without an improvement
  on_nonfinite: if the loss or gradients are not finite, "stop" ends the run, "skip" skips the
    batch, what it did to running statistics too, and "restore" returns to the last checkpoint and
    continues without the batch. The batch is written to workdir in each case
  on_step, on_eval, on_epoch, on_save: hooks, functions of an event, called on all processes: after
    each optimizer step, after each evaluation, at the end of each epoch, and before checkpoints
    are written. What they change is in the checkpoints of the same step. The event has step,
    epoch_idx, trainer, metrics (those of the step, for which on_step waits when it reads them, or
    of the last evaluation), stop(reason), which ends fit, and in on_save ckpt_names
  profile: {steps = {10, 12}} writes a trace of these steps to workdir/profile_step10-12.json, for
    ui.perfetto.dev or chrome://tracing)text";

int fit(lua_State* L) {
  auto object = check_object<LuaTrainer>(L, 1, "Trainer:fit");
  NamedArguments args(L, 2, "Trainer:fit");
  FitOptions options;
  read_train_examples(args, object->collator, options);
  options.per_device_batch_size = args.required<int64_t>("per_device_batch_size");
  options.n_epochs = args.required<int64_t>("n_epochs");
  options.shuffle = args.get<bool>("shuffle", true);
  options.global_batch_size = args.optional<int64_t>("global_batch_size");
  options.max_steps = unless_zero<int64_t>(args, "max_steps");
  options.eval_per_device_batch_size = args.optional<int64_t>("eval_per_device_batch_size");
  options.eval_loss = args.get<bool>("eval_loss", true);
  options.eval_sanity_check = args.get<bool>("eval_sanity_check", true);
  options.eval_every_k_steps = unless_zero<int64_t>(args, "eval_every_k_steps");
  options.profile = check_profile(args);
  std::optional<Examples> eval_examples;
  args.push("eval_examples");
  if (!lua_isnil(L, -1)) {
    eval_examples.emplace(L, -1, "Trainer:fit: eval_examples");
    options.eval_examples = make_dataset(*eval_examples, object->collator);
  }
  options.eval_metrics =
      make_eval_metrics(args, *object, eval_examples,
                        options.eval_per_device_batch_size.value_or(options.per_device_batch_size));
  read_saving(args, options);
  read_hooks(args, object, options);
  options.early_stopping = check_early_stopping(args);
  options.max_seconds = unless_zero<double>(args, "max_seconds");
  options.stop = context(L).stop;
  options.on_nonfinite = check_choice<OnNonfinite>(args, "on_nonfinite",
                                                   {{"stop", OnNonfinite::stop},
                                                    {"skip", OnNonfinite::skip},
                                                    {"restore", OnNonfinite::restore}});
  args.finish();
  if (is_checking(L)) return check_and_end(L, 2, *object);
  auto first_examples = [&] {
    return std::holds_alternative<Dataset>(options.train_examples)
               ? std::get<Dataset>(options.train_examples)
               : std::get<1>(options.train_examples)(0);
  };
  if (PlanMode::is_on()) {
    plan_and_end(L, *object, first_examples(), options.per_device_batch_size,
                 options.global_batch_size);
    return 0;
  }
  if (!object->trainer->deployer()->has_layout()) {
    BatchSizes sizes = with_layout(L, *object, first_examples(),
                                   {options.per_device_batch_size, options.global_batch_size});
    options.per_device_batch_size = *sizes.per_device;
    options.global_batch_size = sizes.global;
  }
  object->trainer->fit(options);
  return 0;
}

}  // namespace redco::lua
