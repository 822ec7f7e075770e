-- What a run leaves in its work folder beside log.txt and metrics.jsonl.
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
  assert(log:find("### Eval results (step 4)", 1, true), log)
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

regression.finish()
