-- Deployer { n_model_shards = "auto", zero = "auto" }: takes a layout that fits, and trains as in
-- it.
local data = require "redco.data"
local program = require "program"
local testing = require "testing"

local test, expect_equal = testing.test, testing.expect_equal
local script = assert(os.getenv "REDCO_SOURCE") .. "/tests/cluster/auto.lua"

local function run(options)
  local code, out, err = program.shell(("\"$REDCO_LUA\" --nproc 2 '%s' %s </dev/null"):format(
    script, options))
  return code, out:gsub("%[0%] ", ""), err
end

local function trained(options)
  local code, out, err = run(options)
  if code ~= 0 then error(("%s: exit code %d: %s%s"):format(options, code, out, err), 2) end
  local losses, layout = out:match "^([^\n]*)\n([^\n]*)"
  local mp, params, states, drawn = layout:match
    "^mp = (%d+), params ([%d.]+), states ([%d.]+), drawn ([%d.]+)$"
  return { losses = losses, mp = tonumber(mp), params = tonumber(params),
    states = tonumber(states), drawn = drawn }
end

-- The bytes that a process needs in each layout.
local totals = {}
do
  local code, out, err = program.shell(("\"$REDCO_LUA\" plan --devices 2 --margin 0 --layouts 100 "
    .. "--json plan.json '%s' </dev/null"):format(script))
  if code ~= 0 then error(out .. err) end
  for _, layout in ipairs(data.json(program.folder .. "/plan.json").layouts) do
    totals[layout.n_model_shards .. " " .. layout.zero] = layout.memory.total
  end
end

-- Memory in which a layout fits with the usual margin.
local function memory(layout) return math.ceil(totals[layout] / 0.94) + 4096 end

-- Losses may differ by the order of sums.
local function expect_near(actual, expected)
  local a, b = {}, {}
  for number in actual:gmatch "%S+" do a[#a + 1] = tonumber(number) end
  for number in expected:gmatch "%S+" do b[#b + 1] = tonumber(number) end
  expect_equal(#a, #b)
  for i = 1, #a do
    if math.abs(a[i] - b[i]) > 2e-5 then
      error(("losses %s, expected %s"):format(actual, expected), 2)
    end
  end
end

local expected = trained "--zero=0"

test("with enough memory, the fastest layout", function()
  local result = trained "--n_model_shards=auto --zero=auto --sequence_parallel=auto"
  expect_near(result.losses, expected.losses)
end)

test("only zero = 3 fits", function()
  assert(totals["1 3"] < totals["1 2"])
  local result = trained("--zero=auto --memory=" .. memory "1 3")
  expect_near(result.losses, expected.losses)
  expect_equal(result.mp, 1)
  assert(result.params < 0.6 and result.states < 0.6)
  -- Planning draws nothing from the script's generators.
  expect_equal(result.drawn, trained("--zero=3").drawn)
end)

test("only two model shards fit", function()
  assert(totals["2 0"] < totals["1 2"])
  local result = trained("--n_model_shards=auto --memory=" .. memory "2 0")
  expect_near(result.losses, expected.losses)
  expect_equal(result.mp, 2)
end)

test("stages are as they are given", function()
  local result = trained "--n_model_shards=auto --zero=auto --n_pipeline_stages=2"
  expect_near(result.losses, expected.losses)
  assert(result.mp == 1 and result.params < 0.6)
end)

test("the first train_step decides", function()
  local result = trained("--how=train_step --n_model_shards=auto --memory=" .. memory "2 0")
  expect_near(result.losses, trained("--how=train_step").losses)
  expect_equal(result.mp, 2)
end)

test("nothing fits", function()
  local amounts = {}
  for i, bytes in ipairs { 1000000, 5000000 } do
    local code, out, err = run("--n_model_shards=auto --zero=auto --memory=" .. bytes)
    expect_equal(code, 1)
    program.expect_has(out .. err, "no layout of 2 devices fits in ",
      "would do, with n_model_shards = ", "at least ")
    amounts[i] = (out .. err):match "devices of ([%d.]+) MiB would do"
  end
  expect_equal(amounts[2], amounts[1])
  local code = run("--n_model_shards=auto --zero=auto --memory="
    .. math.ceil(amounts[1] * 2 ^ 20))
  expect_equal(code, 0)
end)

test("a rule that splits parameters", function()
  local code, out, err = run "--n_model_shards=auto --rule=true"
  expect_equal(code, 1)
  program.expect_has(out .. err, 'n_model_shards = "auto", but the rule "up.weight"')
end)

program.remove_folder()
testing.finish()
