-- D3 to D16: the defects of Redco that are not to come back. What one test cannot see from Lua
-- stands in tests/engine/trainer_test.cpp and schedule_test.cpp under the same number.
local redco = require "redco"
local regression = require "regression"
local testing = require "testing"

local torch, optim = redco.torch, redco.optim
local test, expect_error = testing.test, testing.expect_error
local expect_close, expect_equal = testing.expect_close, testing.expect_equal
local new_workdir, deployer = regression.new_workdir, regression.deployer
local examples_of, collate = regression.examples_of, regression.collate
local start, squared_loss = regression.start, regression.squared_loss
local trainer_of, metrics_of = regression.trainer_of, regression.metrics_of
local copy, expect_same_params = regression.copy, regression.expect_same_params
local weighted_examples, weighted_trainer =
  regression.weighted_examples, regression.weighted_trainer

test("D3: the schedule counts optimizer steps, accumulation or not", function()
  local function rates(accumulate)
    local workdir = new_workdir()
    local d = deployer { workdir = workdir }
    local schedule = d:get_lr_schedule_fn { train_size = 32, n_epochs = 2, learning_rate = 1e-2,
      global_batch_size = 8, per_device_batch_size = 8 / accumulate, warmup_steps = 2 }
    trainer_of { deployer = d, lr_schedule_fn = schedule,
      optimizer = optim.sgd { learning_rate = schedule } }:fit {
      train_examples = examples_of(32), n_epochs = 2, global_batch_size = 8,
      per_device_batch_size = 8 / accumulate,
    }
    local found = {}
    for i, entry in ipairs(metrics_of(workdir)) do found[i] = ("%.6f"):format(entry.lr) end
    return found
  end
  local expected = {}
  for step = 0, 7 do
    expected[step + 1] = ("%.6f"):format(step < 2 and 1e-2 * step / 2 or 1e-2 * (8 - step) / 6)
  end
  expect_equal(table.concat(rates(1), " "), table.concat(expected, " "))
  expect_equal(table.concat(rates(4), " "), table.concat(expected, " "))
end)

test("D4: accumulation gives the step of the whole batch, for losses with a weight too", function()
  for _, make in ipairs { trainer_of, weighted_trainer } do
    local examples = make == trainer_of and examples_of(12) or weighted_examples()
    local workdirs, params = {}, {}
    for i, micro in ipairs { 12, 6, 5, 4, 1 } do
      workdirs[i] = new_workdir()
      local whole = 12 % micro == 0
      local trainer = make { deployer = deployer { workdir = workdirs[i] },
        optimizer = optim.adamw { learning_rate = 0.05 },
        accumulate_grad_batches = not whole and math.ceil(12 / micro) or nil }
      trainer:fit { train_examples = examples, n_epochs = 3, per_device_batch_size = micro,
        global_batch_size = whole and 12 or nil }
      expect_equal(trainer.step, 3)
      params[i] = copy(trainer.params)
      expect_same_params(params[i], params[1], 2e-5)
      local first = metrics_of(workdirs[1])
      for step, entry in ipairs(metrics_of(workdirs[i])) do
        assert(math.abs(entry.loss - first[step].loss) < 1e-5, "another loss")
        assert(math.abs(entry.grad_norm - first[step].grad_norm) < 1e-4, "another norm")
      end
    end
  end
end)

test("D4: the evaluated loss does not depend on the batch size", function()
  local trainer, examples = weighted_trainer {}, weighted_examples()
  local whole = trainer:eval_loss { examples = examples, per_device_batch_size = 12 }
  for _, size in ipairs { 1, 5, 7, 100 } do
    local loss = trainer:eval_loss { examples = examples, per_device_batch_size = size }
    assert(math.abs(loss - whole) < 1e-6, ("%g, not %g"):format(loss, whole))
  end
end)

test("D4: a weight is a number, a tensor of one element, or left out", function()
  local function after(weight)
    local trainer = trainer_of { accumulate_grad_batches = 3, loss_fn = function(...)
      return squared_loss(...), weight and weight(select(4, ...)) or nil
    end }
    trainer:train { examples = examples_of(7), per_device_batch_size = 3 }
    return copy(trainer.params)
  end
  local expected = after(nil)
  expect_same_params(after(function(batch) return batch.y:numel() end), expected)
  expect_same_params(after(function(batch) return torch.tensor(batch.y:numel()) end), expected)
  expect_same_params(after(function(batch) return torch.tensor { batch.y:numel() * 2.0 } end),
    expected)
  local other = after(function() return 1 end)
  assert((other.w - expected.w):abs():max():item() > 1e-4, "the weight changes nothing")
end)

test("D5: no metric is read while its own step is the latest", function()
  local workdir, lines = new_workdir(), {}
  local trainer = trainer_of { deployer = deployer { workdir = workdir },
    collate_fn = function(examples)
    local file = io.open(workdir .. "/metrics.jsonl")
    local n = 0
    if file then
      for _ in file:lines() do n = n + 1 end
      file:close()
    end
    lines[#lines + 1] = n
    return collate(examples)
  end }
  trainer:train { examples = examples_of(8), per_device_batch_size = 2 }
  expect_equal(table.concat(lines, " "), "0 0 1 2")
  expect_equal(#metrics_of(workdir), 4)
end)

test("D6: float16 trains, with a loss that is scaled; other types are refused by name", function()
  local function half_loss(_, _, params, batch)
    local prediction = batch.x:half():matmul(params.w) + params.b
    return (prediction:float() - batch.y):square():mean()
  end
  local workdir, examples = new_workdir(), examples_of(64)
  local trainer = trainer_of { deployer = deployer { workdir = workdir }, loss_fn = half_loss,
    compute_dtype = "float16" }
  trainer:fit { train_examples = examples, per_device_batch_size = 8, n_epochs = 20 }
  expect_close(trainer.params.w:detach(), torch.tensor { 1.0, -2.0, 0.5 }, 0.05, 0.05)
  local scale = trainer.state.loss_scale
  expect_equal(scale.good_steps, trainer.step)
  expect_equal(scale.scale, metrics_of(workdir)[160].loss_scale)
  -- A run goes on from there, or from a scale of its own.
  local resumed = trainer_of { loss_fn = half_loss, compute_dtype = "float16", loss_scale = scale }
  expect_equal(resumed.state.loss_scale.good_steps, trainer.step)
  resumed:set_train_state { params = start(), loss_scale = { scale = 8 } }
  expect_equal(resumed.state.loss_scale.scale, 8)
  expect_error(function()
    trainer_of { compute_dtype = "float16", loss_scale = { scales = 8 } }
  end, "redco_defects_spec.lua:", "loss_scale", "'scales'", "scale")
  expect_error(function() trainer_of { loss_scale = { scale = 8 } } end,
    "redco_defects_spec.lua:", "loss_scale", "float16")
  expect_error(function() trainer_of { compute_dtype = "int64" } end,
    "redco_defects_spec.lua:", "compute_dtype")
  expect_error(function() trainer_of { compute_dtype = "floot" } end, "redco_defects_spec.lua:",
    "compute_dtype", "floot")
end)

test("D7: sets smaller than a batch are used, empty ones are errors that say so", function()
  local trainer = trainer_of()
  trainer:fit { train_examples = examples_of(3), eval_examples = examples_of(2),
    per_device_batch_size = 100, n_epochs = 2 }
  expect_equal(trainer.step, 2)
  local before = copy(trainer.params)
  expect_error(function()
    trainer:fit { train_examples = {}, per_device_batch_size = 2, n_epochs = 1 }
  end, "redco_defects_spec.lua:", "empty")
  expect_error(function()
    trainer:fit { train_examples = function() return {} end,
      per_device_batch_size = 2, n_epochs = 1 }
  end, "redco_defects_spec.lua:", "empty")
  expect_error(function()
    trainer:fit { train_examples = examples_of(3), eval_examples = {}, per_device_batch_size = 2,
      n_epochs = 1 }
  end, "redco_defects_spec.lua:", "eval_examples", "empty")
  expect_error(function() trainer:train { examples = {}, per_device_batch_size = 2 } end,
    "redco_defects_spec.lua:", "empty")
  expect_error(function() trainer:eval_loss { examples = {}, per_device_batch_size = 2 } end,
    "redco_defects_spec.lua:", "empty")
  expect_equal(trainer.step, 2)
  expect_same_params(trainer.params, before)
end)

test("D11: a run resumed without optimizer state keeps its place in the schedule", function()
  local workdir, asked = new_workdir(), {}
  local trainer = trainer_of { deployer = deployer { workdir = workdir }, step = 7,
    optimizer = optim.adamw { learning_rate = function(step)
      asked[step] = true
      return step < 7 and 1 or 1e-3
    end } }
  trainer:train { examples = examples_of(4), per_device_batch_size = 2 }
  expect_equal(trainer.step, 9)
  assert(asked[7] and asked[8] and not asked[0])
  local lines = metrics_of(workdir)
  expect_equal(lines[1].step, 7)
  expect_equal(lines[1].lr, 1e-3)
  assert(trainer.params.w:detach():abs():max():item() < 0.01, "the first rates were applied")
end)

test("D13: a second Deployer doubles no line of the first", function()
  local one, two = new_workdir(), new_workdir()
  local first = deployer { workdir = one }
  local second = deployer { workdir = two }
  first:log_info "to the first"
  second:log_info "to the second"
  first:log_metrics({ value = 1 }, 0)
  local function count(workdir, text)
    local _, n = redco.data.read(workdir .. "/log.txt"):gsub(text, "")
    return n
  end
  expect_equal(count(one, "to the first"), 1)
  expect_equal(count(one, "to the second"), 0)
  expect_equal(count(two, "to the second"), 1)
  expect_equal(count(two, "to the first"), 0)
  expect_equal(#metrics_of(one), 1)
end)

test("D15: compute_dtype casts floating-point parameters only; the masters stay float32", function()
  local seen
  local params = start()
  params.table_of_ids = torch.tensor { 300, 70000 }
  params.flag = torch.tensor { true }
  local trainer = trainer_of { params = params, compute_dtype = "bfloat16",
    optimizer = optim.adamw { learning_rate = 0.1 },
    loss_fn = function(_, state, p, batch)
      seen = { w = p.w.dtype, ids = p.table_of_ids.dtype, flag = p.flag.dtype,
        master = state.params.w.dtype, last = p.table_of_ids[1]:item() }
      return (batch.x:bfloat16():matmul(p.w) + p.b - batch.y):float():square():mean()
    end }
  trainer:train { examples = examples_of(8), per_device_batch_size = 4 }
  expect_equal(seen.w, "bfloat16")
  expect_equal(seen.ids, "int64")
  expect_equal(seen.flag, "bool")
  expect_equal(seen.last, 70000)
  expect_equal(seen.master, "float32")
  expect_equal(trainer.params.w.dtype, "float32")
  for _, leaf in ipairs(redco.tree.leaves(trainer.state.opt_state)) do
    if torch.is_tensor(leaf) then expect_equal(leaf.dtype, "float32") end
  end
  -- Steps far below what bfloat16 resolves at 1 add up in the masters.
  local small = trainer_of { params = { w = torch.ones { 3 }, b = torch.zeros {} },
    compute_dtype = "bfloat16", optimizer = optim.sgd { learning_rate = 1e-4 },
    loss_fn = function(_, _, p) return p.w:sum() + p.b * 0 end }
  small:train { examples = examples_of(8), per_device_batch_size = 1 }
  expect_close(small.params.w:detach(), torch.full({ 3 }, 1 - 8e-4), 1e-6)
end)

test("D16: a frozen parameter needs no gradient and gets no state", function()
  local needs = {}
  local trainer = trainer_of {
    optimizer = optim.freeze(optim.adamw { learning_rate = 0.1 },
      function(name) return name == "w" end),
    loss_fn = function(rng, state, params, batch)
      needs.w, needs.b = params.w.requires_grad, params.b.requires_grad
      return squared_loss(rng, state, params, batch)
    end }
  trainer:train { examples = examples_of(4), per_device_batch_size = 2 }
  assert(not needs.w and needs.b)
  expect_close(trainer.params.w, torch.zeros { 3 })
  assert(trainer.params.b:item() ~= 0)
  for _, path in ipairs(redco.tree.paths(trainer.state.opt_state)) do
    assert(not path:find "%.w$", path)
  end
end)

testing.finish()
