-- Arguments that the classes refuse, errors of callbacks, and the memory of long runs.
local redco = require "redco"
local regression = require "regression"
local testing = require "testing"

local torch, nn, optim = redco.torch, redco.nn, redco.optim
local test, expect_error = testing.test, testing.expect_error
local expect_equal = testing.expect_equal
local new_workdir, deployer = regression.new_workdir, regression.deployer
local examples_of, collate = regression.examples_of, regression.collate
local predict, squared_loss = regression.predict, regression.squared_loss
local trainer_of, metrics_of = regression.trainer_of, regression.metrics_of
local copy, expect_same_params = regression.copy, regression.expect_same_params
local weighted_examples, weighted_trainer =
  regression.weighted_examples, regression.weighted_trainer

test("an error inside each callback carries that callback's file and line", function()
  local function here(offset) return debug.getinfo(2, "l").currentline + offset end
  local function expect_at(line, body)
    local ok, message = pcall(body)
    assert(not ok, "no error")
    local prefix = ("trainer_errors_spec.lua:%d: mine"):format(line)
    assert(tostring(message):sub(1, #prefix) == prefix, tostring(message))
  end
  local examples = examples_of(4)
  local function train(changes)
    trainer_of(changes):train { examples = examples, per_device_batch_size = 2 }
  end
  local line = here(1)
  local function fails() error "mine" end
  expect_at(line, function() train { collate_fn = fails } end)
  expect_at(line, function() train { loss_fn = fails } end)
  expect_at(line, function() train { train_step_fn = fails } end)
  expect_at(line, function() train { apply_fn = fails, loss_fn = function(_,
    state) return state.apply_fn() end } end)
  expect_at(line, function() train { optimizer = optim.sgd { learning_rate = fails } } end)
  expect_at(line, function()
    trainer_of():fit { train_examples = fails, per_device_batch_size = 2, n_epochs = 1 }
  end)
  expect_at(line, function()
    train { train_step_fn = function(_, _, _, defaults) return defaults.value_and_grad(fails) end }
  end)
  local trainer = trainer_of()
  local function predictor(changes)
    local options = { pred_fn = function(_, params, batch) return predict(params, batch) end }
    for key, value in pairs(changes) do options[key] = value end
    return trainer:get_default_predictor(options)
  end
  local function predictions(changes)
    predictor(changes):predict { examples = examples, per_device_batch_size = 2,
      params = trainer.params }
  end
  expect_at(line, function() predictions { pred_fn = fails } end)
  expect_at(line, function() predictions { output_fn = fails } end)
  expect_at(line, function()
    trainer:fit { train_examples = examples, eval_examples = examples, per_device_batch_size = 2,
      n_epochs = 1, eval_predictor = predictor {}, eval_metric_fn = fails }
  end)
  -- An operator's own error, too.
  local _, message = pcall(train, { loss_fn = function(_, _, params, batch)
    return params.w:matmul(batch.x):sum() end })
  assert(message:find "^trainer_errors_spec.lua:%d+: " and message:find("matmul", 1, true)
    or message:find("mat1", 1, true) or message:find("size", 1, true), message)
  -- And a Trainer whose callback failed goes on with the next set.
  local fail_now = true
  local flaky = trainer_of { loss_fn = function(...)
    if fail_now then error "mine" end
    return squared_loss(...)
  end }
  assert(not pcall(flaky.train, flaky, { examples = examples, per_device_batch_size = 2 }))
  fail_now = false
  flaky:train { examples = examples, per_device_batch_size = 2 }
  expect_equal(flaky.step, 2)
end)

test("a loss that cannot be trained on is refused with what was wrong", function()
  local function train(loss_fn, ...)
    expect_error(function()
      trainer_of { loss_fn = loss_fn }:train { examples = examples_of(4),
        per_device_batch_size = 4 }
    end, "trainer_errors_spec.lua:", "loss_fn", ...)
  end
  train(function() end, "tensor of one element", "nil")
  train(function() return 0.5 end, "tensor of one element", "0.5")
  train(function(_, _, params) return params.w end, "[3]")
  train(function() return torch.tensor(1.5) end, "does not depend")
  train(function() return torch.tensor(1) end, "floating-point")
  train(function(...) return squared_loss(...), "many" end, "weight", "many")
  train(function(...) return squared_loss(...), torch.ones { 2 } end, "weight", "[2]")
end)

test("a loss that is no number stops the run and says where", function()
  local workdir = new_workdir()
  local trainer = trainer_of { deployer = deployer { workdir = workdir }, loss_fn = function(_,
    state, params, batch)
    local loss = squared_loss(nil, nil, params, batch)
    return state.step == 2 and loss * (0 / 0) or loss
  end }
  expect_error(function() trainer:train { examples = examples_of(20),
    per_device_batch_size = 2 } end,
    "trainer_errors_spec.lua:", "step 2", "nan")
  assert(trainer.step <= 4)
  local lines = metrics_of(workdir)
  expect_equal(lines[3].step, 2)
  expect_equal(lines[3].loss, "null")
end)

test("micro-batches in which no label counts do not spoil the others, or a whole step", function()
  local labels = torch.full({ 5 }, -100, { dtype = "int64" })
  local empty = { x = torch.ones { 5, 3 }, labels = labels }
  local trainer = weighted_trainer { accumulate_grad_batches = 2 }
  trainer:train { examples = { weighted_examples()[3], empty }, per_device_batch_size = 1 }
  local expected = weighted_trainer {}
  expected:train { examples = { weighted_examples()[3] }, per_device_batch_size = 1 }
  expect_same_params(trainer.params, expected.params)
end)

test("a step in which no label counts at all changes nothing and is no NaN", function()
  local labels = torch.full({ 5 }, -100, { dtype = "int64" })
  local empty = { x = torch.ones { 5, 3 }, labels = labels }
  for _, accumulate in ipairs { 1, 2 } do
    local trainer = weighted_trainer { accumulate_grad_batches = accumulate }
    local before = copy(trainer.params)
    trainer:train { examples = { empty, empty }, per_device_batch_size = 1 }
    expect_same_params(trainer.params, before, 0)
  end
end)

test("wrong results of the other callbacks are refused by the callback's name", function()
  local examples = examples_of(4)
  local function train(changes, ...)
    expect_error(function()
      trainer_of(changes):train { examples = examples, per_device_batch_size = 2 }
    end, "trainer_errors_spec.lua:", ...)
  end
  train({ collate_fn = function() end }, "collate_fn", "table of tensors", "nil")
  train({ collate_fn = function() return torch.zeros { 2 } end }, "collate_fn", "Tensor float32[2]")
  local trainer = trainer_of()
  local function fit(changes, ...)
    local options = { train_examples = examples, eval_examples = examples,
      per_device_batch_size = 2,
      n_epochs = 1, eval_metric_fn = function() return { a = 1 } end,
      eval_predictor = trainer:get_default_predictor { pred_fn = function(_, params, batch)
        return predict(params, batch)
      end } }
    for key, value in pairs(changes) do options[key] = value end
    expect_error(function() trainer:fit(options) end, "trainer_errors_spec.lua:", ...)
  end
  fit({ eval_metric_fn = function() return 0.5 end }, "eval_metric_fn", "table of numbers", "0.5")
  fit({ eval_metric_fn = function() return { rouge = "high" } end }, "eval_metric_fn", "rouge",
    "high")
  fit({ eval_metric_fn = function() return { torch.ones { 2 } } end }, "eval_metric_fn")
  fit({ eval_predictor = trainer:get_default_predictor { pred_fn = function() return nil end } },
    "pred_fn")
  fit({ train_examples = function() return 5 end }, "train_examples", "a list", "5")
  fit({ train_examples = 5 }, "train_examples", "a list", "5")
  fit({ eval_examples = "all" }, "eval_examples", "a list")
  trainer:fit { train_examples = examples, per_device_batch_size = 2, n_epochs = 1 }
end)

test("what is no tree in the results of callbacks is refused by the callback's name", function()
  local examples, trainer = examples_of(4), trainer_of()
  expect_error(function()
    trainer_of { collate_fn = function() return { print } end }:train { examples = examples,
      per_device_batch_size = 2 }
  end, "trainer_errors_spec.lua:", "collate_fn", "function")
  for name, pred in pairs { pred_fn = { pred_fn = function() return { a = print } end },
    output_fn = { pred_fn = function(_, _, batch) return batch end,
      output_fn = function() return { print, print } end } } do
    expect_error(function()
      trainer:get_default_predictor(pred):predict { examples = examples, per_device_batch_size = 2,
        params = {} }
    end, "trainer_errors_spec.lua:", name, "function")
  end
end)

test("unknown arguments are refused with the nearest, later ones by name and reason", function()
  local examples = examples_of(2)
  local trainer = trainer_of()
  local function refused(body, ...) expect_error(body, "trainer_errors_spec.lua:", ...) end
  refused(function() trainer_of { loss_func = 1 } end, "redco.Trainer", "'loss_func'", "'loss_fn'")
  refused(function() redco.Deployer { seed = 1, wrkdir = "x" } end,
    "redco.Deployer", "'wrkdir'", "'workdir'")
  refused(function() redco.Deployer {} end, "redco.Deployer", "'seed'")
  refused(function() redco.Deployer(42) end, "redco.Deployer", "named arguments")
  refused(function() redco.Deployer { jax_seed = 1 } end, "jax_seed: it is called seed")
  refused(function() redco.Deployer { seed = 1.5 } end, "seed", "an integer")
  refused(function() redco.Deployer { seed = 1, n_model_shards = 2 } end, "n_model_shards", "2")
  refused(function() redco.Deployer { seed = 1, device = "cuda:1" } end, 'device = "cuda:1"',
    '"cuda"')
  refused(function() redco.Deployer { seed = 1, device = "tpu" } end, 'device = "tpu"', '"cpu"')
  for name, value in pairs { process_id = 1, host0_address = "host", host0_port = 9 } do
    refused(function() redco.Deployer { seed = 1, [name] = value } end, name, "needs n_processes")
  end
  refused(function() redco.Deployer { seed = 1, n_processes = 2 } end, "needs process_id")
  refused(function() redco.Deployer { seed = 1, collective_timeout = 0 } end, "collective_timeout")
  for _, name in ipairs { "n_local_devices", "wandb_init_kwargs" } do
    refused(function() redco.Deployer { seed = 1, [name] = 1 } end,
      "redco.Deployer: " .. name .. ":")
  end
  for _, name in ipairs { "params_sharded", "opt_state_sharded" } do
    refused(function() trainer_of { [name] = {} } end, "redco.Trainer: " .. name .. ":")
  end
  refused(function() trainer_of { last_ckpt_info = { step = "3" } } end, "last_ckpt_info", "step")
  refused(function() trainer_of { params_sharding_rules = { { "w" } } } end,
    "params_sharding_rules: rule 1", '"w"', "placement is missing")
  -- Options that one process does not need are checked all the same.
  refused(function() trainer_of { params_sharding_rules = { { "q_proj.weight", 0 } } } end,
    'sharding rule "q_proj.weight" matches no parameter')
  refused(function() trainer_of { params_sharding_rules = { { "w", 3 } } } end,
    'sharding rule "w" splits dimension 3', "which has the shape")
  local function fit_refused(arguments, ...)
    local all = { train_examples = examples, per_device_batch_size = 2, n_epochs = 1 }
    for name, value in pairs(arguments) do all[name] = value end
    refused(function() trainer:fit(all) end, ...)
  end
  fit_refused({ save_last_ckpt = true }, "checkpoints need a folder", "workdir")
  fit_refused({ save_ckpt_every_k_epochs = -1 }, "save_ckpt_every_k_epochs = -1 must be positive")
  fit_refused({ save_ckpt_every_k_steps = true }, "Trainer:fit: save_ckpt_every_k_steps")
  fit_refused({ save_argmin_ckpt_by_metrics = "loss" }, "save_argmin_ckpt_by_metrics",
    "a list of names")
  fit_refused({ save_argmax_ckpt_by_metrics = { "loss" } }, "save_argmax_ckpt_by_metrics",
    "needs eval_examples")
  fit_refused({ on_nonfinite = "ignore" }, 'on_nonfinite = "ignore"', '"skip"')
  fit_refused({ on_nonfinite = "restore" }, 'on_nonfinite = "restore"', "save_ckpt_every_k_steps")
  fit_refused({ early_stopping = {} }, "early_stopping needs eval_examples")
  fit_refused({ early_stopping = { metrc = "loss" } }, "early_stopping", "'metrc'", "'metric'")
  fit_refused({ max_seconds = -1 }, "max_seconds = -1 must be positive")
  refused(function()
    trainer:fit { train_examples = examples, per_device_batch_size = 2, n_epoch = 1, n_epochs = 1 }
  end, "Trainer:fit", "'n_epoch'", "'n_epochs'")
  refused(function() trainer:fit { per_device_batch_size = 2, n_epochs = 1 } end, "train_examples")
  refused(function() trainer:fit { train_examples = examples, n_epochs = 1 } end,
    "per_device_batch_size")
  refused(function() trainer:fit { train_examples = examples, per_device_batch_size = 2 } end,
    "n_epochs")
  refused(function() trainer:fit() end, "Trainer:fit")
  refused(function() trainer:train { examples = examples, per_device_batch_size = 0 } end,
    "per_device_batch_size", "0")
  refused(function() trainer:train { examples = examples, batch_size = 2 } end,
    "per_device_batch_size")
  refused(function() trainer:train { examples = examples, per_device_batch_size = 2,
    description = "x" } end,
    "'description'")
  refused(function() trainer:eval_loss { examples = examples, per_device_batch_size = 2,
    dsc = "x" } end,
    "'dsc'", "'desc'")
  refused(function() trainer:get_default_predictor {} end, "pred_fn")
  refused(function() trainer:get_default_predictor { pred_fn = 5 } end, "pred_fn", "a function")
  refused(function() redco.Predictor { deployer = deployer(), collate_fn = collate } end, "pred_fn")
  refused(function() redco.Predictor { deployer = {}, collate_fn = collate, pred_fn = collate } end,
    "deployer")
  local predictor = trainer:get_default_predictor { pred_fn = collate }
  refused(function() predictor:predict { examples = examples, per_device_batch_size = 2 } end,
    "params")
  refused(function()
    predictor:predict { examples = examples, per_device_batch_size = 2, params = {},
      params_replicated = true }
  end, "params_replicated")
  refused(function() trainer_of { params = {} } end, "nothing to train")
  refused(function() trainer_of { params = 5 } end, "params")
  refused(function() trainer_of { optimizer = 5 } end, "optimizer")
  refused(function() trainer_of { loss_fn = "x" } end, "loss_fn", "a function")
  refused(function() trainer_of { accumulate_grad_batches = 0 } end, "accumulate_grad_batches", "0")
  refused(function() trainer_of { step = -1 } end, "step", "-1")
  refused(function()
    trainer:fit { train_examples = examples, per_device_batch_size = 4, global_batch_size = 6,
      n_epochs = 1 }
  end, "global_batch_size", "6", "4", "8")
  refused(function()
    trainer:fit { train_examples = examples, per_device_batch_size = 2, n_epochs = 1,
      eval_examples = examples, eval_metric_fn = print }
  end, "eval_predictor", "eval_metric_fn")
  refused(function() return trainer.loss end, "'loss'", "step")
  refused(function() trainer:fitt {} end, "'fitt'")
end)

test("methods called with a dot instead of a colon, and objects of another kind", function()
  local trainer = trainer_of()
  expect_error(function() trainer.fit { n_epochs = 1 } end, "trainer_errors_spec.lua:")
  expect_error(function() trainer.train(deployer(), {}) end, "trainer_errors_spec.lua:")
  expect_error(function() deployer().gen_rng() end, "trainer_errors_spec.lua:")
  expect_error(function() deployer():log_metrics({ a = {} }, 1) end, "trainer_errors_spec.lua:",
    "a is")
end)

test("Deployer: gen_rng, log_info with a title and a step, log_metrics, workdir", function()
  local workdir = new_workdir()
  local d, same = deployer { workdir = workdir }, deployer()
  expect_equal(d.workdir, workdir)
  expect_equal(same.workdir, nil)
  local function draw(of) return torch.rand({ 1 }, { generator = of:gen_rng() }):item() end
  local first = draw(d)
  expect_equal(first, draw(same))
  assert(draw(d) ~= first)
  assert(draw(deployer { seed = 2 }) ~= first)
  d:log_info("two\nlines", { title = "A title", step = 7 })
  local log = redco.data.read(workdir .. "/log.txt")
  assert(log:find("A title (step 7)", 1, true), log)
  assert(log:find("two", 1, true) and log:find("lines", 1, true))
  for _, value in ipairs { 3, false, torch.ones { 2 }, { a = { 1, "x" } } } do d:log_info(value) end
  d:log_info(nil)
  log = redco.data.read(workdir .. "/log.txt")
  for _, text in ipairs { "3\n", "false\n", "tensor([1., 1.])", '{ a = { 1, "x" } }\n', "nil\n" } do
    assert(log:find(text, 1, true), log)
  end
  expect_error(function() d:log_info() end, "trainer_errors_spec.lua:", "log_info")
  d:log_metrics({ loss = 0.5, count = 3, bad = 0 / 0, tensor = torch.tensor(1.5) }, 9)
  local line = redco.data.lines(workdir .. "/metrics.jsonl")[1]
  for _, part in ipairs { '"step"', '"loss"', '"bad"', "null", "1.5", "0.5" } do
    assert(line:find(part, 1, true), line)
  end
end)

-- ---- memory ----

local function resident_mb()
  for line in io.lines "/proc/self/status" do
    local kb = line:match "^VmRSS:%s+(%d+) kB"
    if kb then return tonumber(kb) / 1024 end
  end
end

test("1,000 steps with 100,000 examples resident hold the memory flat", function()
  local examples = {}
  for i = 1, 100000 do examples[i] = { x = { i, i + 1, i + 2 }, y = i % 7,
    id = "example " .. i } end
  local generator = { generator = torch.Generator(1) }
  local function epoch(from)
    return function() return { unpack(examples, from, from + 3999) } end
  end
  local trainer = trainer_of { params = nn.MLP({ 3, 256, 7 }, generator),
    collate_fn = function(batch)
      local x, y = {}, {}
      for i, example in ipairs(batch) do x[i], y[i] = example.x, example.y end
      return { x = torch.tensor(x):float() / 1e5, y = torch.tensor(y),
        big = torch.zeros { 250000 } }
    end,
    loss_fn = function(_, _, params, batch)
      local loss, count = nn.cross_entropy(nn.mlp(params, batch.x), batch.y)
      return loss + batch.big:sum(), count
    end,
    optimizer = optim.adamw { learning_rate = 1e-3 } }
  local before, highest = nil, 0
  for i = 0, 5 do
    trainer:fit { train_examples = epoch(1 + i * 4000), per_device_batch_size = 16, n_epochs = 1 }
    if i == 1 then before = resident_mb() end  -- with the garbage of two cycles of the collector
    if i > 1 then highest = math.max(highest, resident_mb()) end
  end
  expect_equal(trainer.step, 1500)
  assert(#examples == 100000)
  -- A sanitizer keeps freed memory back, and tells of leaks itself.
  local slack = os.getenv "REDCO_SANITIZE" == "1" and 400 or 30
  assert(highest - before < slack, ("%.1f MB, then %.1f MB"):format(before, highest))
end)

testing.finish()
