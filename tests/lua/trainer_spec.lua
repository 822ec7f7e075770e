-- The Trainer, the Predictor and the Deployer as a script sees them.
local redco = require "redco"
local regression = require "regression"
local testing = require "testing"

local torch, nn, optim = redco.torch, redco.nn, redco.optim
local test, expect_error = testing.test, testing.expect_error
local expect_close, expect_equal = testing.expect_close, testing.expect_equal
local new_workdir, last_workdir = regression.new_workdir, regression.last_workdir
local deployer, examples_of = regression.deployer, regression.examples_of
local collate, start = regression.collate, regression.start
local predict, squared_loss = regression.predict, regression.squared_loss
local trainer_of, metrics_of = regression.trainer_of, regression.metrics_of
local copy, expect_same_params = regression.copy, regression.expect_same_params

-- ---- fit ----

test("fit learns from a list, and counts optimizer steps", function()
  local trainer, examples = trainer_of(), examples_of(64)
  local before = trainer:eval_loss { examples = examples, per_device_batch_size = 16 }
  trainer:fit { train_examples = examples, per_device_batch_size = 8, n_epochs = 20 }
  expect_equal(trainer.step, 160)
  local after = trainer:eval_loss { examples = examples, per_device_batch_size = 16 }
  assert(after < before * 1e-3, ("%g, then %g"):format(before, after))
  expect_close(trainer.params.w:detach(), torch.tensor { 1.0, -2.0, 0.5 }, 0.05, 0.05)
end)

test("fit asks a function for the examples of each epoch, counted from 0", function()
  local asked, seen = {}, {}
  local trainer = trainer_of { collate_fn = function(examples)
    for _, example in ipairs(examples) do seen[#seen + 1] = example.number end
    return collate(examples)
  end }
  local all = examples_of(12)
  trainer:fit {
    train_examples = function(epoch_idx)
      asked[#asked + 1] = epoch_idx
      return { unpack(all, epoch_idx * 4 + 1, epoch_idx * 4 + 4) }
    end,
    per_device_batch_size = 2, n_epochs = 3,
  }
  expect_equal(table.concat(asked, " "), "0 1 2")
  expect_equal(trainer.step, 6)
  for epoch = 0, 2 do
    local numbers = { unpack(seen, epoch * 4 + 1, epoch * 4 + 4) }
    table.sort(numbers)
    expect_equal(table.concat(numbers, " "), ("%d %d %d %d"):format(epoch * 4 + 1, epoch * 4 + 2,
      epoch * 4 + 3, epoch * 4 + 4))
  end
end)

test("each epoch uses every example once, in another order, the same in each run", function()
  local function orders(seed)
    local seen = {}
    local trainer = trainer_of { deployer = deployer { seed = seed },
      collate_fn = function(examples)
      for _, example in ipairs(examples) do seen[#seen + 1] = example.number end
      return collate(examples)
    end }
    trainer:fit { train_examples = examples_of(10), per_device_batch_size = 4, n_epochs = 2 }
    return { unpack(seen, 1, 10) }, { unpack(seen, 11, 20) }
  end
  local first, second = orders(1)
  local text = table.concat(first, " ")
  assert(text ~= table.concat(second, " "))
  expect_equal(text, table.concat((orders(1)), " "))
  assert(text ~= table.concat((orders(2)), " "))
  table.sort(first)
  table.sort(second)
  expect_equal(table.concat(first, " "), "1 2 3 4 5 6 7 8 9 10")
  expect_equal(table.concat(second, " "), "1 2 3 4 5 6 7 8 9 10")
end)

test("the last, smaller batch is used", function()
  local sizes = {}
  local trainer = trainer_of { collate_fn = function(examples)
    sizes[#sizes + 1] = #examples
    return collate(examples)
  end }
  trainer:train { examples = examples_of(10), per_device_batch_size = 4 }
  expect_equal(table.concat(sizes, " "), "4 4 2")
  expect_equal(trainer.step, 3)
end)

test("a limit or an interval of 0 is none", function()
  local trainer = trainer_of()
  trainer:fit { train_examples = examples_of(40), per_device_batch_size = 4, n_epochs = 1,
    max_steps = 0, max_seconds = 0, save_ckpt_every_k_steps = 0 }
  expect_equal(trainer.step, 10)
end)

test("max_steps ends within an epoch, and counts from the step it starts with", function()
  local trainer = trainer_of()
  trainer:fit { train_examples = examples_of(40), per_device_batch_size = 4, n_epochs = 3,
    max_steps = 13 }
  expect_equal(trainer.step, 13)
  trainer:fit { train_examples = examples_of(40), per_device_batch_size = 4, n_epochs = 3,
    max_steps = 13 }
  expect_equal(trainer.step, 13)
  trainer:fit { train_examples = examples_of(40), per_device_batch_size = 4, n_epochs = 0 }
  expect_equal(trainer.step, 13)
end)

test("one step is the closed form", function()
  local trainer, examples = trainer_of(), examples_of(5)
  local batch = collate(examples)
  trainer:train { examples = examples, per_device_batch_size = 5 }
  -- From zero: the gradient of mean (w x + b - y)^2 is -2 mean(y x) and -2 mean(y).
  expect_close(trainer.params.w:detach(), (batch.y:unsqueeze(-1) * batch.x):mean(0) * 0.2, 1e-5)
  expect_close(trainer.params.b:detach(), batch.y:mean() * 0.2, 1e-5)
end)

test("the params that were given stay as they are", function()
  local params = start()
  local trainer = trainer_of { params = params }
  trainer:train { examples = examples_of(4), per_device_batch_size = 2 }
  expect_close(params.w, torch.zeros { 3 })
  assert(not params.w.requires_grad)
  assert(trainer.params.w:detach():abs():sum():item() > 0)
end)

test("a function that changes its batch in place does not change the data it is made of", function()
  local data = torch.ones { 4, 3 }
  local function views() return { x = data, again = data } end
  local function changed(_, params, batch)
    batch.x:add_(1)
    return (batch.x * 10 + batch.again) * params.w
  end
  for _, how in ipairs { "loss_fn", "train_step_fn" } do
    local seen = {}
    local trainer = redco.Trainer {
      deployer = deployer(), params = { w = torch.ones { 3 } }, collate_fn = views,
      optimizer = optim.sgd { learning_rate = 0.1 },
      loss_fn = function(rng, _, params, batch)
        seen[#seen + 1] = batch.x:sum():item()
        return changed(rng, params, batch):mean()
      end,
      train_step_fn = how == "train_step_fn" and function(rng, state, batch)
        return { loss = changed(rng, state.params, batch):mean():item() }
      end or nil,
    }
    local examples = { 1, 2, 3, 4 }
    for _ = 1, 2 do trainer:train { examples = examples, per_device_batch_size = 2 } end
    trainer:eval_loss { examples = examples, per_device_batch_size = 4 }
    for _, sum in ipairs(seen) do expect_equal(sum, 12) end
  end
  local predictor = redco.Predictor { deployer = deployer(), collate_fn = views,
    pred_fn = changed }
  local params = { w = torch.ones { 3 } }
  for _ = 1, 2 do
    local predictions = predictor:predict { params = params, examples = { 1, 2, 3, 4 },
      per_device_batch_size = 4 }
    expect_close(predictions[1], torch.full({ 3 }, 21))
  end
  expect_close(data, torch.ones { 4, 3 }, 0, 0)
end)

test("loss_fn gets rng, state, params, batch and is_training, and state has apply_fn", function()
  local flags, steps = {}, {}
  local function apply(...) return predict(...) end
  local trainer = trainer_of { apply_fn = apply, loss_fn = function(rng, state, params, batch,
    is_training)
    assert(tostring(rng):find "^Generator")
    assert(rawequal(state.apply_fn, apply))
    assert(state.params.w and state.opt_state)
    steps[#steps + 1], flags[#flags + 1] = state.step, tostring(is_training)
    return (state.apply_fn(params, batch) - batch.y):square():mean()
  end }
  trainer:train { examples = examples_of(4), per_device_batch_size = 2 }
  trainer:eval_loss { examples = examples_of(2), per_device_batch_size = 2 }
  expect_equal(table.concat(steps, " "), "0 1 2")
  expect_equal(table.concat(flags, " "), "true true false")
  expect_equal(trainer.state.step, 2)
  assert(rawequal(trainer.state.apply_fn, apply))
end)

-- ---- evaluation and prediction ----

test("predictions come in order, one per example, for any batch size", function()
  local trainer = trainer_of()
  local predictor = trainer:get_default_predictor { pred_fn = function(_, _, batch)
    return { twice = batch.y * 2, nested = { batch.x } }
  end }
  local examples = examples_of(11)
  for _, size in ipairs { 1, 3, 4, 11, 50 } do
    local preds = predictor:predict { examples = examples, per_device_batch_size = size,
      params = trainer.params }
    expect_equal(#preds, 11)
    for i, pred in ipairs(preds) do
      assert(math.abs(pred.twice:item() - 2 * examples[i].y) < 1e-6)
      expect_close(pred.nested[1], examples[i].x)
    end
  end
  expect_equal(#predictor:predict { examples = {}, per_device_batch_size = 2, params = {} }, 0)
end)

test("output_fn makes the predictions, any values", function()
  local predictor = redco.Predictor { deployer = deployer(), collate_fn = collate,
    pred_fn = function(_, params, batch) return predict(params, batch) end,
    output_fn = function(batch_preds)
      local texts = {}
      for i, value in ipairs(batch_preds:tolist()) do texts[i] = ("%.3f"):format(value) end
      return texts
    end }
  local preds = predictor:predict { examples = examples_of(5), per_device_batch_size = 2,
    params = { w = torch.zeros { 3 }, b = torch.tensor(0.25) } }
  expect_equal(table.concat(preds, " "), "0.250 0.250 0.250 0.250 0.250")
  expect_error(function()
    redco.Predictor { deployer = deployer(), collate_fn = collate,
      pred_fn = function(_, params, batch) return predict(params, batch) end,
      output_fn = function() return { 1 } end,
    }:predict { examples = examples_of(4), per_device_batch_size = 2, params = start() }
  end, "trainer_spec.lua:", "output_fn", "1", "2")
end)

test("pred_fn runs without gradients, with an rng of its own per batch", function()
  local function run()
    local predictor = redco.Predictor { deployer = deployer { seed = 4 }, collate_fn = collate,
      pred_fn = function(rng, params, batch)
        assert(not predict(params, batch).requires_grad, "a history is recorded")
        return torch.rand({ batch.y:numel() }, { generator = rng })
      end }
    local preds = predictor:predict { examples = examples_of(4), per_device_batch_size = 2,
      params = { w = torch.ones({ 3 }):requires_grad_(), b = torch.zeros {} } }
    for i = 1, 4 do preds[i] = preds[i]:item() end
    return preds
  end
  local a, b = run(), run()
  expect_equal(table.concat(a, " "), table.concat(b, " "))
  assert(a[1] ~= a[3], "two batches draw the same")
end)

test("fit evaluates after each epoch with loss and metrics; what it wrote", function()
  local workdir, calls = new_workdir(), {}
  local trainer = trainer_of { deployer = deployer { workdir = workdir } }
  trainer:fit {
    train_examples = examples_of(8), eval_examples = examples_of(5), per_device_batch_size = 4,
    eval_per_device_batch_size = 2, n_epochs = 2,
    eval_predictor = trainer:get_default_predictor { pred_fn = function(_, params, batch)
      return { y = predict(params, batch) }
    end },
    eval_metric_fn = function(examples, preds)
      calls[#calls + 1] = #examples
      expect_equal(#preds, #examples)
      local off = 0
      for i, example in ipairs(examples) do off = off + math.abs(preds[i].y:item() - example.y) end
      return { mean_off = off / #examples, tensor = torch.tensor(2.5) }
    end,
  }
  expect_equal(table.concat(calls, " "), "2 5 5")  -- the sanity check, then each epoch
  local text = redco.data.lines(workdir .. "/metrics.jsonl")
  expect_equal(#text, 2 * (2 + 1))
  local steps, evaluations = {}, 0
  for i, entry in ipairs(metrics_of(workdir)) do
    if entry.kind then
      evaluations = evaluations + 1
      expect_equal(entry.kind, '"eval"')
      assert(entry.loss and entry.mean_off, text[i])
      expect_equal(entry.tensor, 2.5)
      expect_equal(entry.step, evaluations * 2)
    else
      steps[#steps + 1] = entry.step
      assert(entry.loss and entry.grad_norm, text[i])
      expect_equal(entry.lr, 0.1)
    end
  end
  expect_equal(evaluations, 2)
  expect_equal(table.concat(steps, " "), "0 1 2 3")
  local log = redco.data.read(workdir .. "/log.txt")
  for _, part in ipairs { "Parameters", "Training on 8 examples, global_batch_size = 4",
    "Evaluated one batch as a sanity check", "mean_off" } do
    assert(log:find(part, 1, true), "log.txt has no " .. part .. ":\n" .. log)
  end
end)

test("the sanity check finds what is wrong before the first step, and changes no result", function()
  local workdir = new_workdir()
  local trainer = trainer_of { deployer = deployer { workdir = workdir } }
  local function fit(t, check)
    t:fit { train_examples = examples_of(8), eval_examples = examples_of(4), n_epochs = 1,
      per_device_batch_size = 4, eval_sanity_check = check,
      eval_predictor = t:get_default_predictor { pred_fn = function(_, params, batch)
        return predict(params, batch)
      end },
      eval_metric_fn = function() error "no metric" end }
  end
  local message = expect_error(function() fit(trainer) end, "no metric")
  assert(message:find "^trainer_spec.lua:%d+: no metric", message)
  expect_equal(trainer.step, 0)
  expect_error(function() fit(trainer, false) end, "no metric")
  expect_equal(trainer.step, 2)

  local function noise(check)
    local seen, d = {}, deployer()
    local t = trainer_of { deployer = d, loss_fn = function(rng, state, params, batch)
      if #seen < 3 or not check then seen[#seen + 1] = torch.rand({ 1 },
        { generator = rng }):item() end
      return squared_loss(rng, state, params, batch)
    end }
    t:fit { train_examples = examples_of(8), eval_examples = examples_of(4), n_epochs = 1,
      per_device_batch_size = 4, eval_sanity_check = check }
    return copy(t.params), torch.rand({ 1 }, { generator = d:gen_rng() }):item()
  end
  local with, drawn = noise(true)
  local without, drawn_too = noise(false)
  expect_same_params(with, without, 0)
  expect_equal(drawn, drawn_too)
end)

test("eval_loss = false leaves the loss out", function()
  local workdir = new_workdir()
  local trainer = trainer_of { deployer = deployer { workdir = workdir } }
  trainer:fit { train_examples = examples_of(4), eval_examples = examples_of(4), eval_loss = false,
    n_epochs = 1, per_device_batch_size = 4 }
  expect_equal(#metrics_of(workdir), 1)
end)

-- ---- steps of one's own, schedules, dropout ----

test("train_step_fn replaces the step", function()
  local seen = {}
  local trainer = trainer_of { train_step_fn = function(rng, state, batch, defaults)
    assert(tostring(rng):find "^Generator" and defaults.loss_fn)
    seen[#seen + 1] = state.step
    local loss, grads = defaults.value_and_grad(function(params)
      return defaults.loss_fn(rng, state, params, batch, true)
    end)
    grads = redco.tree.map(function(g) return g * 0.5 end, grads)
    local norm = defaults.apply_gradients(grads)
    return { loss = loss, half_norm = norm, rate = defaults.learning_rate }
  end, deployer = deployer { workdir = new_workdir() } }
  local workdir = last_workdir()
  trainer:train { examples = examples_of(8), per_device_batch_size = 4 }
  expect_equal(table.concat(seen, " "), "0 1")
  expect_equal(trainer.step, 2)
  local expected = trainer_of { optimizer = optim.sgd { learning_rate = 0.05 } }
  expected:train { examples = examples_of(8), per_device_batch_size = 4 }
  expect_same_params(trainer.params, expected.params)
  local lines = metrics_of(workdir)
  assert(lines[1].loss and lines[1].half_norm and lines[2].rate == 0.1)
end)

test("a train_step_fn that returns no table, or never steps, is handled", function()
  expect_error(function()
    trainer_of { train_step_fn = function() return 5 end }:train { examples = examples_of(2),
      per_device_batch_size = 2 }
  end, "trainer_spec.lua:", "train_step_fn", "table of metrics", "5")
  local trainer = trainer_of { train_step_fn = function() return {} end }
  trainer:train { examples = examples_of(4), per_device_batch_size = 2 }
  expect_equal(trainer.step, 2)
  expect_error(function()
    trainer_of { accumulate_grad_batches = 2, train_step_fn = function() return {} end }
  end, "trainer_spec.lua:", "accumulate_grad_batches", "train_step_fn")
end)

test("lr_schedule_fn is logged where the optimizer has no rate of its own to tell", function()
  local workdir = new_workdir()
  local trainer = trainer_of { deployer = deployer { workdir = workdir },
    lr_schedule_fn = function(step) return 1 / (step + 1) end,
    optimizer = optim.sgd { learning_rate = function(step) return 1 / (step + 1) end } }
  trainer:train { examples = examples_of(6), per_device_batch_size = 2 }
  for i, entry in ipairs(metrics_of(workdir)) do
    assert(math.abs(entry.lr - 1 / i) < 1e-9, entry.lr)
  end
end)

test("get_lr_schedule_fn: cosine, a ratio of warm-up, the ends, and refusals", function()
  local d = deployer()
  local schedule = d:get_lr_schedule_fn { train_size = 100, per_device_batch_size = 10,
    n_epochs = 2,
    learning_rate = 1, schedule_type = "cosine", warmup_ratio = 0.5, init_learning_rate = 0.2,
    end_learning_rate = 0.1 }
  assert(math.abs(schedule(0) - 0.2) < 1e-9)
  assert(math.abs(schedule(5) - 0.6) < 1e-9)
  assert(math.abs(schedule(10) - 1) < 1e-9)
  assert(math.abs(schedule(15) - 0.55) < 1e-9)
  assert(math.abs(schedule(20) - 0.1) < 1e-9)
  local function wrong(changes, ...)
    local options = { train_size = 100, per_device_batch_size = 10, n_epochs = 2,
      learning_rate = 1 }
    for key, value in pairs(changes) do options[key] = value end
    expect_error(function() d:get_lr_schedule_fn(options) end, "trainer_spec.lua:", ...)
  end
  wrong({ schedule_type = "square" }, "square", "linear", "cosine")
  wrong({ warmup_ratio = 2 }, "warmup_ratio", "2")
  wrong({ train_size = 0 }, "train_size")
  wrong({ learning_rate = 0 }, "learning_rate")
  wrong({ global_batch_size = 15 }, "15", "10", "20")
  wrong({ warmup = 3 }, "'warmup'")
  expect_equal(d:get_accumulate_grad_batches { global_batch_size = 30, per_device_batch_size = 10 },
    3)
  local localized, global = d:get_local_global_micro_batch_size { per_device_batch_size = 10 }
  expect_equal(localized, 10)
  expect_equal(global, 10)
end)

local function dropout_run(seed)
  local trainer = trainer_of { deployer = deployer { seed = seed },
    loss_fn = function(rng, _, params, batch, is_training)
      local x = nn.dropout(batch.x, 0.5, { train = is_training, rng = rng })
      return (x:matmul(params.w) + params.b - batch.y):square():mean()
    end }
  trainer:fit { train_examples = examples_of(20), eval_examples = examples_of(4), n_epochs = 2,
    per_device_batch_size = 5 }
  return copy(trainer.params)
end

test("the same seed is the same run, dropout included; another seed another", function()
  local a, b, c = dropout_run(1), dropout_run(1), dropout_run(2)
  assert(torch.equal(a.w, b.w) and torch.equal(a.b, b.b))
  assert(not torch.equal(a.w, c.w))
end)

test("each example of each step draws its own numbers, other tensors the step's", function()
  local drawn, shared, calls = {}, {}, 0
  local trainer = trainer_of { accumulate_grad_batches = 2, loss_fn = function(rng, ...)
    local step = math.floor(calls / 2)
    calls = calls + 1
    for _, value in ipairs(torch.rand({ 2 }, { generator = rng }):tolist()) do
      assert(not drawn[value], "drawn before")
      drawn[value] = true
    end
    local value = torch.rand({ 1 }, { generator = rng }):item()
    assert(not drawn[value], "drawn before")
    expect_equal(shared[step] or value, value)
    shared[step] = value
    return squared_loss(rng, ...)
  end }
  trainer:train { examples = examples_of(12), per_device_batch_size = 2 }
  expect_equal(trainer.step, 3)
  assert(shared[0] ~= shared[1])
end)

test("set_train_state starts anew", function()
  local trainer = trainer_of { apply_fn = predict }
  trainer:train { examples = examples_of(4), per_device_batch_size = 2 }
  local once = copy(trainer.params)
  trainer:set_train_state { params = start() }
  expect_equal(trainer.step, 0)
  expect_close(trainer.params.w:detach(), torch.zeros { 3 })
  trainer:set_train_state { params = once, step = 5,
    optimizer = optim.adamw { learning_rate = 0.1 },
    apply_fn = squared_loss }
  expect_equal(trainer.step, 5)
  assert(rawequal(trainer.state.apply_fn, squared_loss))
  expect_same_params(trainer.params, once, 0)
end)

testing.finish()
