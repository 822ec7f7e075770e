-- The files of a run in its work folder beside log.txt and metrics.jsonl.
local redco = require "redco"
local regression = require "regression"
local testing = require "testing"

local torch = redco.torch
local test, expect_equal, expect_error = testing.test, testing.expect_equal, testing.expect_error
local deployer, new_workdir = regression.deployer, regression.new_workdir

test("fit writes what it predicted and found", function()
  local workdir = new_workdir()
  local trainer = regression.trainer_of { deployer = deployer { workdir = workdir } }
  trainer:fit { train_examples = regression.examples_of(8), n_epochs = 2,
    per_device_batch_size = 4, eval_examples = regression.examples_of(3),
    eval_predictor = trainer:get_default_predictor {
      pred_fn = function(_, _, batch) return { y = batch.y * 2 } end },
    eval_metric_fn = function() return { accuracy = 0.5 } end }
  for epoch = 0, 1 do
    local outputs = redco.data.json(("%s/outputs_epoch%d.json"):format(workdir, epoch))
    expect_equal(#outputs, 3)
    for i, output in ipairs(outputs) do
      expect_equal(output.example.number, i)
      expect_equal(#output.example.x, 3)
      expect_equal(("%.4f"):format(output.pred.y), ("%.4f"):format(output.example.y * 2))
    end
    local results = redco.data.json(("%s/eval_results_epoch%d.json"):format(workdir, epoch))
    expect_equal(results.accuracy, 0.5)
    assert(results.loss > 0)
  end
  local log = redco.data.read(workdir .. "/log.txt")
  assert(log:find("] Eval results (step 4): accuracy 0.5", 1, true), log)
end)

test("save_outputs writes any value", function()
  local workdir = new_workdir()
  local it = deployer { workdir = workdir }
  local endless = {}
  endless.itself = endless
  it:save_outputs({ "a\nb", 1.5, torch.tensor { 1, 2 }, { print, x = 1 }, endless,
    { torch.zeros { 40, 40 }, true }, 0 / 0 }, { desc = "any", step = 3 })
  local outputs = redco.data.json(workdir .. "/outputs_any.json")
  expect_equal(outputs[1], "a\nb")
  expect_equal(outputs[2], 1.5)
  expect_equal(table.concat(outputs[3], " "), "1 2")
  assert(outputs[4]["1"]:find "^function", outputs[4]["1"])
  expect_equal(outputs[4].x, 1)
  assert(outputs[5].itself.itself.itself)
  expect_equal(outputs[6][1], "Float[40, 40]")
  expect_equal(outputs[6][2], true)
  assert(tostring(outputs[7]):find "nan", outputs[7])
  expect_error(function() it:save_outputs({}, { desc = "../x", step = 3 }) end,
    'desc = "../x"')
  expect_error(function() it:save_outputs("text", { desc = "x", step = 3 }) end, "expected a list")
end)

test("images and TensorBoard's file are refused where they cannot be", function()
  local it = deployer { workdir = new_workdir() }
  expect_error(function() it:log_image("it", torch.zeros { 3, 4 }:long(), 1) end,
    "log_image: it: the pixels", "got Long")
  it:log_image("it", torch.zeros { 3, 4 }, 1)
  expect_error(function() deployer { run_tensorboard = true } end, "give a workdir")
end)

local function spend(seconds)
  local till = os.clock() + seconds
  while os.clock() < till do end
end

-- The lines of metrics.jsonl of a fit of two steps of four examples, and one of two.
local function steps_of(changes, per_device_batch_size)
  local workdir = new_workdir()
  changes.deployer = deployer { workdir = workdir }
  regression.trainer_of(changes):fit { train_examples = regression.examples_of(10), n_epochs = 1,
    per_device_batch_size = per_device_batch_size, global_batch_size = 4 }
  local steps = {}
  for i, line in redco.data.jsonl(workdir .. "/metrics.jsonl"):ipairs() do steps[i] = line end
  expect_equal(#steps, 3)
  return steps
end

local function expect_near(actual, expected)
  assert(math.abs(actual - expected) < 1e-6 * expected, ("%g is not %g"):format(actual, expected))
end

test("a step tells what it cost", function()
  local steps = steps_of({
    collate_fn = function(examples)
      spend(0.01)
      local batch = regression.collate(examples)
      batch.input_ids = torch.zeros({ #examples, 7 }, { dtype = "int64" })
      return batch
    end,
    loss_fn = function(_, _, params, batch)
      spend(0.02)
      return (batch.x:matmul(params.w:view { 3, 1 }):view { -1 } - batch.y):square():mean()
    end,
  }, 2)
  for i, step in ipairs(steps) do
    local n = i < 3 and 4 or 2
    expect_near(step.examples_per_second * step.step_seconds, n)
    expect_near(step.tokens_per_second * step.step_seconds, 7 * n)
    local n_batches = n / 2
    assert(step.collate_seconds >= 0.01 * n_batches)
    assert(step.step_seconds >= step.collate_seconds + 0.02 * n_batches)
    expect_equal(step.collective_seconds, 0)
    -- Products of 3 numbers, and as many for the gradient of w: no backward of x.
    assert(step.mfu > 0 and step.mfu < 1e-3, step.mfu)
    assert(step.memory_bytes > 2 ^ 20 and step.peak_memory_bytes >= step.memory_bytes)
  end
  expect_near(steps[3].mfu * steps[3].step_seconds * 2, steps[1].mfu * steps[1].step_seconds)
end)

-- The floating-point operations of a step of a loss, in those of another: of one process the same
-- peak counts for both.
local function flops_of(loss)
  local step = steps_of({
    params = { w = torch.ones { 3, 3 }, v = torch.ones { 3, 1 } },
    loss_fn = function(_, _, params, batch) return loss(params, batch.x):mean() end,
  }, 4)[1]
  return step.mfu * step.step_seconds
end

test("each product of the model counts once", function()
  local function hidden(params, x) return x:matmul(params.w):tanh() end
  local function plain(params, x) return hidden(params, x):matmul(params.v) end
  local expected = flops_of(plain)
  expect_near(flops_of(function(params, x)
    return redco.checkpoint(hidden, params, x):matmul(params.v)
  end), expected)
  expect_near(flops_of(function(params, x)
    return redco.vmap(plain, { in_dims = { false, 0 } })(params, x:unsqueeze(1))
  end), expected)
end)

test("what is not known of a step is left out, and its own metrics come first", function()
  local steps = steps_of({
    params = { w = torch.zeros { 3 } },
    train_step_fn = function(_, _, batch, defaults)
      local _, grads = defaults.value_and_grad(function(params)
        return (batch.x * params.w):sum()
      end)
      defaults.apply_gradients(grads)
      return { mfu = 5 }
    end,
  }, 4)
  for _, step in ipairs(steps) do
    expect_equal(step.tokens_per_second, nil)
    expect_equal(step.mfu, 5)
  end
end)

test("a profile is a trace of the steps, their parts and operators", function()
  local workdir = new_workdir()
  local trainer = regression.trainer_of { deployer = deployer { workdir = workdir } }
  local function fit(steps)
    trainer:fit { train_examples = regression.examples_of(8), n_epochs = 2,
      per_device_batch_size = 2, profile = { steps = steps } }
  end
  fit { 3, 5 }  -- across epochs
  local count = {}
  for _, event in ipairs(redco.data.json(workdir .. "/profile_step3-5.json").traceEvents) do
    if event.ph == "X" then count[event.name] = (count[event.name] or 0) + 1 end
  end
  expect_equal(count["step 2"], nil)
  expect_equal(count["step 6"], nil)
  for _, name in ipairs { "step 3", "step 4", "step 5" } do expect_equal(count[name], 1) end
  for _, name in ipairs { "collate", "forward", "backward", "update" } do
    expect_equal(count[name], 3)
  end
  assert(count["aten::mv"] >= 3)
  local log = redco.data.read(workdir .. "/log.txt")
  assert(log:find(workdir .. "/profile_step3-5.json", 1, true), log)

  fit { 15, 99 }  -- the run ends before
  assert(redco.data.read(workdir .. "/profile_step15-99.json"):find("step 15", 1, true))

  expect_error(function() fit { 5, 3 } end, "steps = 5-3 are none")
  expect_error(function() fit { 5 } end, "profile: expected the first and the last step", "{5}")
  expect_error(function()
    regression.trainer_of {}:fit { train_examples = regression.examples_of(2), n_epochs = 1,
      per_device_batch_size = 2, profile = { steps = { 0, 0 } } }
  end, "give the Deployer a workdir")
end)

testing.finish()
