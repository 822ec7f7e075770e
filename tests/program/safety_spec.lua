-- A run of several processes ends when one of them fails, is gone, or strays.
local program = require "program"
local testing = require "testing"

local test, run, shell, write = testing.test, program.run, program.shell, program.write
local expect_has, seconds = program.expect_has, program.seconds

-- A training run in which `at(where, step)` is called in every phase.
local training = [[
local redco = require "redco"
local torch = redco.torch
local d = redco.Deployer { seed = 1, verbose = false, collective_timeout = 60 }
local step = 0
local function at(where) %s end
local trainer = redco.Trainer {
  deployer = d, params = { w = torch.randn { 8, 8 } },
  collate_fn = function(batch) at "collate" return { x = torch.ones { #batch, 8 } } end,
  loss_fn = function(_, state, params, batch)
    step = state.step
    local phase = "forward"
    return redco.checkpoint(function(w)  -- called again in backward
      at(phase)
      phase = "backward"
      return batch.x:matmul(w):square():mean()
    end, params.w)
  end,
  optimizer = redco.optim.sgd { learning_rate = function() at "optimizer" return 0.1 end },
}
local examples = {}
for i = 1, 3000 do examples[i] = i end
trainer:fit { train_examples = examples, per_device_batch_size = 1, n_epochs = 1 }
]]

local function train(body, environment)
  local path = write("training.lua", training:format(body))
  local from = seconds()
  local code, out, err = shell(("%s \"$REDCO_LUA\" --nproc 3 %s"):format(environment or "", path))
  assert(code ~= 0, out .. err)
  return code, err, seconds() - from, path
end

test("an error of Lua in any phase ends all before the time limit, told by all", function()
  for _, where in ipairs { "collate", "forward", "backward", "optimizer" } do
    local code, err, took, path = train(([[
if where == %q and step == 3 and d.process_id == 2 then error "out of tea" end]]):format(where))
    testing.expect_equal(code, 1)
    local cause = path .. ":5: out of tea"
    expect_has(err, "process 2 of 3 failed first: ", cause, "because process 2 failed: ",
      "stack traceback")
    assert(took < 50, where .. ": " .. took .. " s")
  end
end)

test("both calls, and their lines, are named when a process strays", function()
  local path = write("strays.lua", [[
local redco = require "redco"
local torch = redco.torch
local d = redco.Deployer { seed = 1, verbose = false }
local x = redco.shard(torch.ones { 4, 2 }, { dp = 0 })
if d.process_id == 0 then
  x:full()
end
x:sum():full()]])
  local code, out, err = run { "--nproc", "2", path }
  assert(code == 1, out .. err)
  expect_has(err, "the processes diverged", "process 0 calls all_gather", path .. ":6",
    "process 1 calls all_reduce", path .. ":8")
end)

test("a process that ends early is missed by name", function()
  local path = write("leaves.lua", [[
local redco = require "redco"
local d = redco.Deployer { seed = 1, verbose = false }
local x = redco.shard(redco.torch.ones { 4, 2 }, { dp = 0 })
if d.process_id == 0 then
  x:full()
end]])
  local from = seconds()
  local code, out, err = run { "--nproc", "2", path }
  assert(code == 1, out .. err)
  expect_has(err, path .. ":5: all_gather of Float", "over group \"dp\"",
    "because process 1 has ended its script without it")
  assert(seconds() - from < 50)
end)

program.remove_folder()
testing.finish()
