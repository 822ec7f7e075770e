-- Checkpoints of `fit`, how a run goes on from them, and when it ends.
local redco = require "redco"
local regression = require "regression"
local testing = require "testing"

local torch, optim, tree = redco.torch, redco.optim, redco.tree
local test, expect_error, expect_equal = testing.test, testing.expect_error, testing.expect_equal
local new_workdir, deployer = regression.new_workdir, regression.deployer
local examples_of, trainer_of = regression.examples_of, regression.trainer_of
local metrics_of, squared_loss = regression.metrics_of, regression.squared_loss

local function names_in(folder)
  local pipe = assert(io.popen(("ls -A '%s' 2>&1"):format(folder)))
  local names = {}
  for name in pipe:lines() do names[#names + 1] = name end
  pipe:close()
  return table.concat(names, " ")
end

local function text_of(path) return table.concat(redco.data.lines(path):tolist(), "\n") end

local function expect_same(a, b)
  local leaves, others = tree.leaves(a), tree.leaves(b)
  expect_equal(#leaves, #others)
  for i, leaf in ipairs(leaves) do
    assert(torch.equal(leaf, others[i]), ("%s is not %s"):format(tostring(leaf),
      tostring(others[i])))
  end
end

local function adamw()
  return optim.chain { optim.clip_by_global_norm(1), optim.adamw { learning_rate = 0.05 } }
end

--- A Trainer that goes on from what is in the work folder, as Redco's scripts do.
local function resumed(workdir, changes)
  local d = deployer { workdir = workdir }
  local ckpt, info = d:load_last_ckpt {}
  local options = {
    deployer = d, optimizer = adamw(), opt_state = ckpt and ckpt.opt_state, last_ckpt_info = info,
  }
  if ckpt then options.params = ckpt.params end
  for key, value in pairs(changes or {}) do options[key] = value end
  return trainer_of(options)
end

local function fit(trainer, changes)
  local options = { train_examples = examples_of(10), per_device_batch_size = 4, n_epochs = 4 }
  for key, value in pairs(changes or {}) do options[key] = value end
  trainer:fit(options)
  return trainer
end

test("without shuffle each epoch keeps the order of the examples", function()
  local seen
  local function run(shuffle)
    seen = {}
    trainer_of {
      deployer = deployer(), optimizer = adamw(),
      collate_fn = function(examples)
        for _, example in ipairs(examples) do seen[#seen + 1] = example.number end
        return redco.data.default_collate(examples)
      end,
    }:fit {
      train_examples = function(epoch_idx)
        local examples = examples_of(6)
        for i, example in ipairs(examples) do example.number = 10 * epoch_idx + i end
        return examples
      end,
      per_device_batch_size = 4, n_epochs = 2, shuffle = shuffle,
    }
    return table.concat(seen, " ", #seen - 11)
  end
  expect_equal(run(false), "1 2 3 4 5 6 11 12 13 14 15 16")
  assert(run(true) ~= "1 2 3 4 5 6 11 12 13 14 15 16")
end)

-- ---- Checkpoints ----

test("at the first start there is none", function()
  local d = deployer { workdir = new_workdir() }
  local ckpt, info = d:load_last_ckpt {}
  expect_equal(ckpt, nil)
  expect_equal(info, nil)
  expect_error(function() deployer():load_last_ckpt() end, "workdir")
  expect_error(function() d:load_ckpt { ckpt_dir = "/none" } end, "/none")
end)

test("the folders have Redco's names", function()
  local workdir = new_workdir()
  local trainer = resumed(workdir)
  fit(trainer, { eval_examples = examples_of(4), save_ckpt_every_k_epochs = 2,
    save_ckpt_every_k_steps = 5, save_last_ckpt = true, save_argmin_ckpt_by_metrics = { "loss" },
    save_argmax_ckpt_by_metrics = { "mean" }, keep_last_k_ckpts = 1,
    eval_predictor = trainer:get_default_predictor { pred_fn = function(_, params, batch)
      return regression.predict(params, batch)
    end },
    eval_metric_fn = function(_, preds) return { mean = torch.stack(preds):mean():item() } end,
  })
  expect_equal(names_in(workdir .. "/ckpts"),
    "epoch_3 last last_ckpt.txt max_mean min_loss step_10")
  expect_equal(text_of(workdir .. "/ckpts/last_ckpt.txt"), "last")
  local ckpt, info = deployer { workdir = workdir }:load_last_ckpt()
  expect_same(ckpt.params, trainer.params)
  expect_same(ckpt.opt_state, trainer.state.opt_state)
  expect_equal(info.step, 12)
  expect_equal(info.epoch_idx, 3)
  expect_equal(info.seed, 1)
  assert(info.metrics.loss == info.min_metrics.loss)
  assert(info.config and info.versions.redco and info.ckpt_dir == workdir .. "/ckpts/last")
end)

test("the end of fit: what it did, the best metrics, where the files are", function()
  local workdir = new_workdir()
  local trainer = resumed(workdir)
  local function metric_fn(_, preds)
    return { accuracy = 0.5, mean = torch.stack(preds):mean():item() }
  end
  local function options(of)
    return { eval_examples = examples_of(4), save_last_ckpt = true, n_epochs = 2,
      save_argmin_ckpt_by_metrics = { "loss" }, eval_metric_fn = metric_fn,
      eval_predictor = of:get_default_predictor { pred_fn = function(_, params, batch)
        return regression.predict(params, batch)
      end } }
  end
  fit(trainer, options(trainer))
  local lines = {}
  for line in text_of(workdir .. "/log.txt"):gmatch "[^\n]+" do
    lines[#lines + 1] = line:match "%] (.*)"
  end
  local last = "Checkpoints: WORKDIR/ckpts/min_loss, WORKDIR/ckpts/last. "
    .. "To draw the curves: redco-lua plot WORKDIR"
  expect_equal(lines[#lines], (last:gsub("WORKDIR", workdir)))
  -- Whether a low mean is good is not known.
  assert(lines[#lines - 1]:find("^Trained 6 steps %(2 epochs%) in 0:0%d, [%d.k]+ examples/s; best: "
    .. "accuracy 0.5 %(epoch 0%), loss [%d.]+ %(epoch 1%)$"), lines[#lines - 1])
  assert(lines[#lines - 2]:find("^Eval results %(step 6%): accuracy 0.5, loss [%d.]+ %(best%), "
    .. "mean %-?[%d.]+$"), lines[#lines - 2])

  trainer = resumed(workdir)
  fit(trainer, options(trainer))
  local log = text_of(workdir .. "/log.txt")
  assert(log:find("Nothing left to train at step 6; best: accuracy 0.5 (epoch 0), loss ", 1, true),
    log)
  assert(log:find("loss [%d.]+ %(epoch 1%)\n[^\n]+curves: redco%-lua plot [^\n]+$"), log)
end)

test("a metric to save by is checked before training", function()
  local trainer = resumed(new_workdir())
  for _, option in ipairs { "save_argmin_ckpt_by_metrics", "save_argmax_ckpt_by_metrics" } do
    expect_error(function()
      fit(trainer, { eval_examples = examples_of(4), [option] = { "los" } })
    end, "fit: the evaluation has no metric 'los'; it has loss; did you mean 'loss'?")
  end
  expect_equal(trainer.step, 0)
end)

test("what is left out, and what is converted", function()
  local workdir = new_workdir()
  fit(resumed(workdir), { save_last_ckpt = true, save_opt_states = false,
    save_float_dtype = "bfloat16" })
  local d = deployer { workdir = workdir }
  local ckpt = d:load_last_ckpt()
  expect_equal(ckpt.opt_state, nil)
  expect_equal(ckpt.params.w.dtype, "bfloat16")
  expect_equal(d:load_last_ckpt { float_dtype = "float32" }.params.w.dtype, "float32")
  expect_equal(d:load_last_ckpt { load_params = false }.params, nil)
  local shape = d:load_params_shape(workdir .. "/ckpts/last")
  expect_equal(shape.w.device, "meta")
  expect_equal(table.concat(shape.w.shape, ","), "3")
end)

test("save_ckpt and load_ckpt of the Deployer and the Trainer", function()
  local workdir = new_workdir()
  local d = deployer { workdir = workdir }
  local dir = workdir .. "/mine"
  d:save_ckpt { ckpt_dir = dir, params = { a = { torch.ones { 2 } } }, info = { note = "text" } }
  local ckpt, info = d:load_ckpt { ckpt_dir = dir }
  expect_same(ckpt.params, { a = { torch.ones { 2 } } })
  expect_equal(info.note, "text")
  local trainer = fit(trainer_of { deployer = d })
  trainer:save_ckpt { ckpt_name = "mine", epoch_idx = 3 }
  ckpt, info = d:load_last_ckpt()
  expect_same(ckpt.params, trainer.params)
  expect_equal(info.epoch_idx, 3)
  for _, name in ipairs { "../x", "", ".x", "a/b" } do
    expect_error(function() trainer:save_ckpt { ckpt_name = name } end, "ckpt_name")
  end
end)

-- ---- Going on ----

test("a run in pieces of any length is the run in one", function()
  local whole = fit(resumed(new_workdir()))
  for _, every in ipairs { 1, 2, 5 } do
    local workdir, trainer = new_workdir(), nil
    for max_steps = every, 12 + every, every do
      trainer = resumed(workdir)
      assert(trainer.step == max_steps - every or max_steps > 12)
      fit(trainer, { max_steps = max_steps, save_last_ckpt = true })
    end
    expect_equal(trainer.step, 12)
    expect_same(trainer.params, whole.params)
    expect_same(trainer.state.opt_state, whole.state.opt_state)
  end
end)

test("Redco's info, which has a step and an epoch alone, goes on at the next epoch", function()
  local workdir = new_workdir()
  fit(resumed(workdir), { n_epochs = 2, save_last_ckpt = true })
  local ckpt = deployer { workdir = workdir }:load_last_ckpt()
  local trainer = fit(resumed(new_workdir(), {
    params = ckpt.params, opt_state = ckpt.opt_state,
    last_ckpt_info = { step = 6, epoch_idx = 1 },
  }))
  expect_equal(trainer.step, 12)
  expect_same(trainer.params, fit(resumed(new_workdir())).params)
end)

test("other examples in the midst of an epoch are refused", function()
  local workdir = new_workdir()
  fit(resumed(workdir), { max_steps = 4, save_last_ckpt = true })
  expect_error(function() fit(resumed(workdir), { train_examples = examples_of(11) }) end,
    "10 examples", "11 now")
  for _, info in ipairs { { step = "x" }, { step = -1 }, { step = 1, epoch_idx = true },
    { metrics = 3 }, { step = 1, epoch_idx = 0, n_examples = 1.5 },
    { left_out_batches = { 3 } }, { left_out_batches = { { 1 } } }, { trainer_seed = "x" },
    { loss_scale = 3 } } do
    expect_error(function() trainer_of { last_ckpt_info = info } end)
  end
end)

test("a second Trainer, and a second fit, begin anew", function()
  local workdir = new_workdir()
  fit(resumed(workdir), { max_steps = 4, save_last_ckpt = true })
  local d = deployer { workdir = workdir }
  local trainer, other = resumed(workdir, { deployer = d }), trainer_of { deployer = d }
  expect_equal(trainer.step, 4)
  fit(trainer)
  expect_equal(trainer.step, 12)
  fit(other)
  expect_equal(other.step, 12)
  fit(trainer, { n_epochs = 1 })
  expect_equal(trainer.step, 15)
end)

test("tied weights stay tied", function()
  local function model(changes)
    local options = {
      loss_fn = function(_, _, params, batch)
        return (batch.x:matmul(params.a):mul(params.b:sum()) - batch.y):square():mean()
      end,
    }
    for key, value in pairs(changes or {}) do options[key] = value end
    return options
  end
  local function tied()
    local w = torch.ones { 3 }
    return { a = w, b = w }
  end
  local whole = fit(resumed(new_workdir(), model { params = tied() }))
  local workdir = new_workdir()
  fit(resumed(workdir, model { params = tied() }), { max_steps = 5, save_last_ckpt = true })
  local trainer = fit(resumed(workdir, model()))
  expect_same(trainer.params, whole.params)
  assert(torch.equal(trainer.params.a, trainer.params.b))
end)

test("a run that resumes logs each step once", function()
  local workdir = new_workdir()
  local options = { eval_examples = examples_of(4), eval_every_k_steps = 2,
    save_ckpt_every_k_steps = 4 }
  -- As one that is killed after step 6.
  options.max_steps = 7
  fit(resumed(workdir), options)
  options.max_steps = nil
  local trainer = fit(resumed(workdir), options)
  local steps, evals, whole = {}, {}, new_workdir()
  for _, entry in ipairs(metrics_of(workdir)) do
    local list = entry.kind and evals or steps
    list[#list + 1] = entry.step
  end
  expect_equal(table.concat(steps, " "), "0 1 2 3 4 5 6 7 8 9 10 11")
  expect_equal(table.concat(evals, " "), "2 3 4 6 8 9 10 12")
  expect_same(trainer.params, fit(resumed(whole), options).params)
end)

-- ---- Ends ----

test("early_stopping ends after so many evaluations that are no better, also over a resume",
  function()
    local function options(changes)
      local all = { n_epochs = 50, eval_examples = examples_of(4), save_last_ckpt = true,
        -- Never better than at first.
        early_stopping = { metric = "loss", mode = "max", patience = 3 } }
      for key, value in pairs(changes or {}) do all[key] = value end
      return all
    end
    local sgd = { optimizer = optim.sgd { learning_rate = 0.1 } }
    local workdir = new_workdir()
    expect_equal(fit(resumed(workdir, sgd), options()).step, 12)
    assert(text_of(workdir .. "/log.txt"):find "Ended early: loss has not improved on ")
    workdir = new_workdir()
    fit(resumed(workdir, sgd), options { n_epochs = 2 })
    expect_equal(fit(resumed(workdir, sgd), options()).step, 12)
    -- It does get better, but by less and less.
    local trainer = fit(resumed(new_workdir(), sgd), options {
      early_stopping = { metric = "loss", patience = 1, min_delta = 0.1 } })
    assert(trainer.step > 3 and trainer.step < 60, trainer.step)
    expect_error(function() fit(resumed(new_workdir()), options {
      early_stopping = { metric = "los" } }) end, "no metric 'los'", "did you mean 'loss'?")
  end)

test("evaluations every k steps, and time that is over", function()
  local workdir = new_workdir()
  fit(resumed(workdir), { eval_examples = examples_of(4), eval_every_k_steps = 2 })
  local steps = {}
  for _, entry in ipairs(metrics_of(workdir)) do
    if entry.kind == '"eval"' then steps[#steps + 1] = entry.step end
  end
  expect_equal(table.concat(steps, " "), "2 3 4 6 8 9 10 12")
  workdir = new_workdir()
  local trainer = fit(resumed(workdir), { n_epochs = 1e6, max_seconds = 0.2,
    save_last_ckpt = true })
  assert(trainer.step > 0)
  expect_equal(resumed(workdir).step, trainer.step)
  assert(text_of(workdir .. "/log.txt"):find "The time is over at step")
end)

test("time that is over in an evaluation ends it, and the resumed run makes it", function()
  local n_evaluated, waits = 0, false
  local function loss_fn(rng, state, params, batch, is_training)
    if not is_training then
      n_evaluated = n_evaluated + 1
      local from = os.time()
      while waits and os.time() < from + 3 do end
    end
    return squared_loss(rng, state, params, batch)
  end
  local changes = { loss_fn = loss_fn }
  local options = { eval_examples = examples_of(6), n_epochs = 2, save_last_ckpt = true,
    eval_sanity_check = false, eval_every_k_steps = 2 }
  local function with(more)
    local all = {}
    for _, each in ipairs { options, more } do
      for key, value in pairs(each) do all[key] = value end
    end
    return all
  end
  local whole, cut = new_workdir(), new_workdir()
  local expected = fit(resumed(whole, changes), options)
  local n_whole = n_evaluated
  waits, n_evaluated = true, 0
  local trainer = fit(resumed(cut, changes), with { max_seconds = 2 })
  expect_equal(trainer.step, 2)
  expect_equal(n_evaluated, 1)
  assert(text_of(cut .. "/log.txt"):find("The time is over at step 2; the run that resumes "
    .. "evaluates first", 1, true))
  waits, n_evaluated = false, 0
  trainer = fit(resumed(cut, changes), options)
  expect_equal(n_evaluated, n_whole)
  expect_same(trainer.params, expected.params)
  local function evaluations(workdir)
    local lines = {}
    for _, entry in ipairs(metrics_of(workdir)) do
      if entry.kind == '"eval"' then lines[#lines + 1] = entry.step .. " " .. entry.loss end
    end
    return table.concat(lines, "\n")
  end
  expect_equal(evaluations(cut), evaluations(whole))
end)

-- ---- Losses and gradients that are not finite ----

--- A Trainer whose loss of the batch with example 7 is `factor` times what it is.
local function spoilt(factor, changes)
  local options = {
    collate_fn = function(examples)
      local batch = regression.collate(examples)
      batch.factor = torch.ones {}
      for _, example in ipairs(examples) do
        if example.number == 7 then batch.factor = torch.full({}, factor) end
      end
      return batch
    end,
    loss_fn = function(rng, state, params, batch)
      return squared_loss(rng, state, params, batch) * batch.factor
    end,
    optimizer = optim.sgd { learning_rate = 0.1 },
  }
  for key, value in pairs(changes or {}) do options[key] = value end
  return options
end
local nan = 0 / 0

test("on_nonfinite = stop ends the run, and keeps the batch", function()
  local workdir = new_workdir()
  expect_error(function() fit(resumed(workdir, spoilt(nan))) end, "the loss of step", "nan")
  local name = names_in(workdir):match "nonfinite_step_%d+%.safetensors"
  local batch = torch.load(workdir .. "/" .. name)
  assert(batch.factor:isnan():item() and batch.x:dim() == 2)
end)

test("the batch that is kept is the one that was, its random numbers too", function()
  for _, accumulate in ipairs { 1, 2 } do
    local workdir, drawn = new_workdir(), {}
    local options = spoilt(nan, { accumulate_grad_batches = accumulate })
    local collate, loss = options.collate_fn, options.loss_fn
    options.collate_fn = function(examples)
      local batch = collate(examples)
      batch.noise = torch.rand { #examples }
      return batch
    end
    options.loss_fn = function(rng, state, params, batch)
      drawn[state.step] = drawn[state.step] or {}
      table.insert(drawn[state.step], batch.noise)
      return loss(rng, state, params, batch)
    end
    expect_error(function() fit(resumed(workdir, options)) end, "the loss of step")
    local name, step = names_in(workdir):match "(nonfinite_step_(%d+)%.safetensors)"
    local noise = torch.cat(drawn[tonumber(step)])
    expect_equal(#drawn[tonumber(step)], accumulate)
    assert(torch.equal(torch.load(workdir .. "/" .. name).noise, noise))
  end
end)

test("on_nonfinite = skip goes on as if the batch had no gradient", function()
  for _, optimizer in ipairs { "sgd", "adamw" } do
    local function options(factor)
      local rate = { learning_rate = 0.1 }
      return spoilt(factor, { optimizer = optim[optimizer](rate) })
    end
    local workdir = new_workdir()
    local trainer = fit(resumed(workdir, options(nan)), { on_nonfinite = "skip",
      save_last_ckpt = true })
    expect_equal(trainer.step, 8)  -- 12 batches, 4 of them left out
    assert(names_in(workdir):find "nonfinite_step_%d+%.safetensors")
    assert(text_of(workdir .. "/log.txt"):find "the batch is skipped")
    for _, param in ipairs(tree.leaves(trainer.params)) do
      assert(param:isfinite():all():item())
    end
    if optimizer == "sgd" then
      expect_same(trainer.params, fit(resumed(new_workdir(), options(0))).params)
    end
  end
  expect_error(function()
    fit(trainer_of { loss_fn = function(_, _, params) return params.w:sum() * nan end },
      { on_nonfinite = "skip" })
  end, "10 batches in a row")
end)

test("a batch that is skipped leaves no trace in running statistics", function()
  local nn = redco.nn
  for _, dtype in ipairs { "float32", "bfloat16" } do
    local function trained(examples)
      local options = spoilt(1, {
        params = { norm = nn.BatchNorm(2), w = torch.ones { 2 } }, compute_dtype = dtype,
        optimizer = optim.sgd { learning_rate = 0 },
        collate_fn = function(rows)
          return { x = torch.tensor { { rows[1], 1 }, { 2 * rows[1], 3 } } }
        end,
        loss_fn = function(_, _, params, batch, train)
          return (nn.batch_norm(params.norm, batch.x, { train = train }) * params.w):sum()
        end,
      })
      return fit(trainer_of(options), { train_examples = examples, per_device_batch_size = 1,
        shuffle = false, n_epochs = 1, on_nonfinite = "skip" }).params
    end
    expect_same(trained { 0.5, nan, 1.5, math.huge, 2.5 }, trained { 0.5, 1.5, 2.5 })
  end
end)

test("on_nonfinite = restore goes back, and on without the batch", function()
  local whole = fit(resumed(new_workdir(), spoilt(0)))
  local workdir = new_workdir()
  local trainer = fit(resumed(workdir, spoilt(nan)), { on_nonfinite = "restore",
    save_ckpt_every_k_steps = 1, n_epochs = 1 })
  local names = names_in(workdir)
  assert(names:find "nonfinite_step_", names)
  expect_same(trainer.params, fit(resumed(new_workdir(), spoilt(0)), { n_epochs = 1 }).params)
  -- Examples that are left out stay left out after a resume.
  trainer = fit(resumed(workdir, spoilt(nan)), { on_nonfinite = "restore",
    save_ckpt_every_k_steps = 1, save_last_ckpt = true })
  expect_same(trainer.params, whole.params)
  expect_error(function()
    fit(resumed(new_workdir(), spoilt(nan)), { on_nonfinite = "restore",
      save_ckpt_every_k_epochs = 1 })
  end, "has not written a checkpoint yet")
end)

-- ---- Checkpoints that cannot be written ----

test("on_save_error: stop and continue, in the background and not", function()
  for _, in_background in ipairs { true, false } do
    local function options(policy)
      return { save_ckpt_every_k_steps = 4, save_in_background = in_background,
        on_save_error = policy }
    end
    local workdir = new_workdir()
    os.execute(("mkdir -p '%s/ckpts/step_8/of mine'"):format(workdir))
    expect_error(function() fit(resumed(workdir), options "stop") end, "cannot write", "/step_8",
      "holds other things")
    expect_equal(select(2, deployer { workdir = workdir }:load_last_ckpt()).step, 4)
    local trainer = fit(resumed(workdir), options "continue")
    expect_equal(trainer.step, 12)
    assert(text_of(workdir .. "/log.txt"):find "No checkpoint was written, and training goes on")
    expect_equal(names_in(workdir .. "/ckpts"), "last_ckpt.txt step_12 step_4 step_8")
    expect_equal(names_in(workdir .. "/ckpts/step_8"), "of mine")
    expect_same(trainer.params, fit(resumed(new_workdir())).params)
  end
end)

testing.finish()
