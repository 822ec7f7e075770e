-- redco-lua --report-sharding, and the warning about operators that move much.
local program = require "program"
local testing = require "testing"

local test, expect_equal = testing.test, testing.expect_equal
local run, write = program.run, program.write

local function expect_run(expected_code, args)
  local code, out, err = run(args)
  if code ~= expected_code then
    error(("expected exit code %d, got %d\n%s%s"):format(expected_code, code, out, err), 2)
  end
  return err
end

local function expect_has(text, ...)
  local from = 1
  for _, part in ipairs { ... } do
    local _, last = text:find(part, from, true)
    if not last then
      error(("expected %q, after what came before, in:\n%s"):format(part, text), 2)
    end
    from = last + 1
  end
end

local function count(text, part)
  local n, from = 0, 1
  while true do
    local first, last = text:find(part, from, true)
    if not first then return n end
    n, from = n + 1, last + 1
  end
end

local head = [[
local redco = require "redco"
local torch = redco.torch
local deployer = redco.Deployer { seed = 1, n_model_shards = 2, verbose = false }
]]

local trains = [[
local function make_trainer(width)
  local rng = deployer:gen_rng()
  return redco.Trainer {
    deployer = deployer, optimizer = redco.optim.adamw { learning_rate = 0.1 },
    params = { a = torch.randn({ width, 32 }, { generator = rng }),
               b = torch.randn({ 32, width }, { generator = rng }) },
    collate_fn = function(examples) return { x = torch.stack(examples) } end,
    loss_fn = function(_, _, params, batch)
      return torch.linear(torch.linear(batch.x, params.a):relu(), params.b):pow(2):mean()
    end,
  }
end
local examples = { torch.ones { 32 }, torch.ones { 32 } }
local function train(width)
  local trainer = make_trainer(width)
  trainer:fit { train_examples = examples, per_device_batch_size = 2, n_epochs = 1 }
  return trainer:memory()
end
]]

test("groups of zero are shown where there are some", function()
  local path = write("groups.lua", [[
local redco = require "redco"
local torch = redco.torch
local deployer = redco.Deployer { seed = 1, zero = 1, zero_group = 2, verbose = false }
local rows = redco.shard(torch.ones(8), { dp = 0, dp_replicate = 0 })
assert(rows:placement().dp_replicate == "shard(0)")
assert(tostring(rows):find("dp=shard(0), dp_replicate=shard(0), mp=replicate", 1, true))
assert(rows:sum():item() == 8)
local first = redco.shard(rows, { dp = 0 })
assert(first:placement().dp_replicate == nil and not tostring(first):find "dp_replicate")
assert(deployer.mesh.dp == 2 and deployer.mesh.mp == 1 and deployer.mesh.dp_replicate == 2)
]])
  expect_has(expect_run(0, { "--report-sharding", "--nproc", "4", path }),
    "sharding over 4 processes (dp = 2, dp_replicate = 2, mp = 1), as process 0 saw it\n",
    "  dp            all_reduce            1",
    "  dp_replicate  all_reduce            1", "  dp_replicate  all_gather            1")
end)

test("collectives, operators that were gathered with their line, and the bytes held", function()
  local path = write("trains.lua", head .. trains .. [[
train(8)
local memory = train(64)
assert(memory.params.here == 8192 and memory.params.whole == 16384)
collectgarbage()
local halves = redco.shard(torch.eye(64), { mp = 0 })
for i = 1, 3 do torch.linalg_inv(halves) end
local found
for _, move in ipairs(redco.sharding_counters().moves) do
  if move.what == "aten::linalg_inv_ex" then found = move end
end
assert(found.line == arg[0] .. ":27" and found.cause == "operator without rule")
]])
  local err = expect_run(0, { "--nproc", "2", "--report-sharding", path })
  expect_has(err, "[0] redco-lua: sharding over 2 processes (dp = 1, mp = 2), as process 0 saw it",
    "Collectives", "mp    all_reduce", "world all_reduce",
    "had to be gathered", "aten::linalg_inv_ex at " .. path .. ":27: 3 calls, 24.0 KiB",
    "(all_gather on mp)", "whole matrix", '"replicate" } }', "Also sent", "sums for operators",
    "Plans of calls: ", " found, ", " made",
    "Held on this device by the largest of 2 Trainers",
    "parameters", "8.0 KiB of 16.0 KiB", "gradients", "8.0 KiB of 16.0 KiB",
    "optimizer states", "16.0 KiB of 32.0 KiB")
  expect_equal(count(err, "sharding over"), 1)
end)

test("operators that have a rule, and gather for it, are named with their lines", function()
  local path = write("rules.lua", head .. [[
local x, y = redco.shard(torch.randn { 6, 8 }, { mp = 0 }), torch.randn { 3, 8 }
local kept = {
  x:narrow(0, 1, 4),
  torch.glu(x:mul(1), 0),
  x:mul(2):sort(0),
  torch.cat({ x:mul(3), y }, 0),
  x:mul(4):median(0),
}
redco.shard(x, { mp = 1 })
]])
  local err = expect_run(0, { "--nproc", "2", "--report-sharding", path })
  for i, name in ipairs { "slice", "glu", "sort", "cat", "median" } do
    expect_has(err, ("aten::%s at %s:%d: 1 call, "):format(name, path, 5 + i))
  end
  expect_has(err, "480 B in all", "params_sharding_rules", "by the script:\n",
    "redistribute at " .. path .. ":12: 1 call, 48 B (all_to_all on mp)")
end)

test("Trainer:memory tells what each level of zero leaves on a device", function()
  local path = write("memory.lua", ([[
local redco = require "redco"
local torch = redco.torch
for zero = 0, 3 do
  local deployer = redco.Deployer { seed = 1, zero = zero, zero_min_size = 64, verbose = false }
  %s
  local memory = train(64)
  local text = {}
  for i, kind in ipairs { "params", "grads", "opt_state" } do
    text[i] = memory[kind].here .. " of " .. memory[kind].whole
  end
  print(zero, table.concat(text, ", "))
end
]]):format(trains))
  local code, out, err = run { "--nproc", "2", path }
  assert(code == 0, err)
  local share = "8192 of 16384, 16388 of 32772"  -- adamw counts its steps in 4 bytes
  for zero, expected in pairs {
    [0] = "16384 of 16384, 16384 of 16384, 32772 of 32772",
    [1] = "16384 of 16384, " .. share, [2] = "16384 of 16384, " .. share,
    [3] = "8192 of 16384, " .. share,
  } do
    expect_equal(count(out, "] " .. zero .. "\t" .. expected .. "\n"), 2)
  end
end)

test("a script that fails is reported on too, before its error", function()
  local path = write("fails.lua", head .. "error 'out of tea'")
  local err = expect_run(1, { "--nproc", "2", "--report-sharding", path })
  expect_has(err, "[0] redco-lua: sharding over 2 processes", "Collectives", "none",
    "All operators worked on parts.", "[0] redco-lua: " .. path .. ":4: out of tea")
  expect_equal(count(err, "sharding over"), 1)
end)

test("one process says in one line that there is nothing to tell", function()
  local path = write("alone.lua", "require('redco').Deployer { seed = 1, verbose = false }")
  expect_equal(expect_run(0, { "--report-sharding", path }),
    "redco-lua: sharding: one process holds everything, so nothing was sharded\n")
  expect_equal(expect_run(0, { "--report-sharding", "-e", "local x = 1" }),
    "redco-lua: sharding: there was no Deployer, so nothing was sharded\n")
  expect_equal(expect_run(0, { path }), "")
end)

test("what moves more than a few MB because it is gathered is warned of once", function()
  local path = write("moves.lua", head .. [[
local small, large = torch.ones { 8, 8 }, torch.ones { 2048, 1024 }
torch.nonzero(redco.shard(small, { mp = 0 }))
for i = 1, 4 do torch.nonzero(redco.shard(large, { mp = 0 })) end
]])
  local err = expect_run(0, { "--nproc", "2", path })
  expect_equal(count(err, "\n"), 1)
  expect_has(err, "[0] warning: aten::nonzero, called at " .. path .. ":6, " ..
    "works on whole tensors", "MiB", "torch.where")
end)

program.remove_folder()
testing.finish()
