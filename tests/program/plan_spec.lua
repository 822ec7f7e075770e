-- `redco-lua plan` plans a script's training, and says what is wrong.
local data = require "redco.data"
local program = require "program"
local testing = require "testing"

local test, expect_equal = testing.test, testing.expect_equal
local expect_has = program.expect_has

-- A layer of 64 MB, which has no values, and a script that would write to its work folder.
program.write("train.lua", [[
local redco = require "redco"
local o = redco.options { batch = 4, global_batch_size = 0, shards = 1, width = 2048, how = "" }
local deployer = redco.Deployer { seed = 1, n_model_shards = o.shards, workdir = "run" }
local nn = redco.nn
local params = {
  up = nn.Linear(o.width, 4 * o.width, { generator = deployer:gen_rng() }),
  down = nn.Linear(4 * o.width, o.width, { generator = deployer:gen_rng() }),
}
if o.how == "no training" then return end
local trainer = redco.Trainer {
  deployer = deployer, params = params, optimizer = redco.optim.adamw { learning_rate = 0.01 },
  collate_fn = function(examples) return { x = redco.torch.ones { #examples, o.width } } end,
  loss_fn = function(_, _, params, batch)
    local y = nn.linear(params.down, nn.linear(params.up, batch.x):relu())
    if o.how == "endless" then while y:sum():item() > 0 do y = y * 0.5 end end
    if o.how == "broken" then error "the user's own" end
    return y:square():mean()
  end,
}
if o.how == "train_step" then trainer:train_step { examples = { 1, 2, 3, 4 } } end
trainer:fit {
  train_examples = { 1, 2, 3 }, per_device_batch_size = o.batch, n_epochs = 1,
  global_batch_size = o.global_batch_size > 0 and o.global_batch_size or nil,
}
print "not reached"
]])

local function plan(...)
  return program.run { "plan", ... }
end

local function fails(code, parts, ...)
  local found, out, err = plan(...)
  if found ~= code then error(("exit code %d: %s%s"):format(found, out, err), 2) end
  expect_has(err, unpack(parts))
end

test("a table, a JSON file, and nothing else", function()
  local code, out, err = plan("--servers", "1x A100-80G:2", "--json", "plan.json", "--explain", "1",
    "train.lua", "--batch=4")
  expect_equal(err, "")
  expect_equal(code, 0)
  expect_has(out, "train.lua on ", "A100-80G", "global batch 8", "*", "the largest tensors:",
    "parameters")
  assert(not out:find("not reached", 1, true))
  local result = data.json(program.folder .. "/plan.json")
  expect_equal(result.schema, 1)
  expect_equal(result.n_devices, 2)
  expect_equal(result.n_parameters, 2 * 4 * 2048 * 2048 + 5 * 2048)
  local n_asked = 0
  for _, layout in ipairs(result.layouts) do
    if layout.is_asked then n_asked = n_asked + 1 end
    local sum = 0
    for kind, bytes in pairs(layout.memory) do
      if kind ~= "allocated" and kind ~= "total" then sum = sum + bytes end
    end
    expect_equal(sum, layout.memory.total)
  end
  expect_equal(n_asked, 1)
  expect_equal(os.execute("test -e '" .. program.folder .. "/run'") == 0, false)
end)

test("two plans are equal", function()
  local texts = {}
  for i = 1, 2 do
    plan("--servers", "1x A100-80G:2", "--json", "plan.json", "train.lua")
    texts[i] = program.read(program.folder .. "/plan.json")
  end
  expect_equal(texts[1], texts[2])
end)

test("a global batch that the layout does not divide", function()
  local code, out, err = plan("--servers", "1x A100-80G:2", "--layouts", "1", "train.lua",
    "--global-batch-size=6")
  expect_equal(err, "")
  expect_equal(code, 0)
  expect_has(out, "is not possible: global_batch_size = 6 is no multiple of 8", "the nearest: 8")
end)

test("a loop of train_step", function()
  local code, out, err = plan("--servers", "1x A100-80G:2", "train.lua", "--how=train_step")
  expect_equal(err, "")
  expect_equal(code, 0)
  expect_has(out, "global batch 4", "*")
end)

test("errors", function()
  local here = { "--servers", "1x A100-80G:2", "train.lua" }
  local function fails_with(code, parts, ...)
    fails(code, parts, here[1], here[2], here[3], ...)
  end
  fails(2, { "A100-81G", "A100-80G" }, "--servers", "1x A100-81G:2", "train.lua")
  fails(2, { "there is no flag --nodes" }, "--nodes", "train.lua")
  fails(2, { "give the script" }, "--servers", "1x A100-80G:2")
  fails(2, { "cannot read the script missing.lua" }, "--servers", "1x A100-80G:2", "missing.lua")
  fails(1, { "the last row is" }, "--servers", "1x A100-80G:2", "--explain", "99", "train.lua")
  local code, _, err = program.run { "--nproc", "2", "plan", "train.lua" }
  expect_equal(code, 2)
  expect_has(err, "plan runs in one process")
  fails_with(1, { "train.lua ended without a Trainer:fit" }, "--how=no training")
  fails_with(1, { "the user's own", "train.lua:" }, "--how=broken")
  fails_with(1, { "200000 operators", "train.lua:", "taken as 1" }, "--how=endless", "--width=16")
  fails_with(1, { "n_model_shards = 3 does not divide the 2 devices" }, "--shards=3")
  fails(1, { "global_batch_size = 3 is no multiple of 8", "the nearest: 8" }, "--servers",
    "1x A100-80G:2", "--max-mp", "1", "train.lua", "--global-batch-size=3")
  fails(1, { "no layout of 2 devices fits in 15.8 GiB", "row 1 (n_model_shards = ", "of which ",
    "at least 5 such devices" }, "--servers", "1x V100-16G:2", "train.lua", "--width=24576")
end)

program.remove_folder()
testing.finish()
