--- Runs of train.lua in several processes, and what came out of them.
local program = require "program"
local torch = require "redco.torch"

local runs = {}

local script = assert(os.getenv "REDCO_SOURCE") .. "/tests/cluster/train.lua"

--- Runs it in `n` processes with the options, and the variables if any; returns as program.run.
function runs.train(n, n_model_shards, options, environment)
  local words = {}
  for name, value in pairs(environment or {}) do
    words[#words + 1] = ("%s='%s'"):format(name, value)
  end
  words[#words + 1] = ("\"$REDCO_LUA\" --nproc %d '%s' --n_model_shards=%d"):format(n, script,
    n_model_shards)
  for name, value in pairs(options) do words[#words + 1] = ("'--%s=%s'"):format(name, value) end
  return program.shell(table.concat(words, " ") .. " </dev/null")
end

--- Fails unless a command ended with the expected exit code; shows what it wrote.
function runs.expect_code(expected, code, out, err)
  if code ~= expected then
    error(("expected exit code %d, got %d\n%s%s"):format(expected, code, out, err), 2)
  end
end

--- The losses of a run's steps, from its folder. A step that was done again counts as it was then.
function runs.losses(folder)
  local losses = {}
  for line in program.read(folder .. "/metrics.jsonl"):gmatch "[^\n]+" do
    local step, loss = line:match '"step":(%d+)', line:match '"loss":([^,}]+)'
    if step and loss then losses[tonumber(step) + 1] = tonumber(loss) end
  end
  return torch.tensor(losses, { dtype = "float64" })
end

function runs.expect_near(what, actual, expected, tolerance)
  local off = (actual - expected):abs():max():item() / expected:abs():max():item()
  if off > tolerance or off ~= off then
    error(("%s: %g off, at most %g is allowed\nexpected %s\ngot %s"):format(what, off, tolerance,
      tostring(expected), tostring(actual)), 2)
  end
end

--- The words of a command that trains in `n` processes together, 20 steps on batches of 8, in a
--- folder of the test's; with train.lua, or with death.lua.
function runs.words(n, folder, name)
  return ("%s/tests/cluster/%s --workdir=%s/%s --per_device_batch_size=%d"):format(
    os.getenv "REDCO_SOURCE", name or "train.lua", program.folder, folder, 8 / n)
end

local function losses_in(folder)
  return runs.losses(("%s/%s/gpt-float64-zero0"):format(program.folder, folder))
end

local alone

--- Fails unless that went as it goes in one process.
function runs.expect_as_alone(folder)
  if not alone then
    local code, _, err = program.shell('"$REDCO_LUA" ' .. runs.words(1, "alone"))
    assert(code == 0, err)
    alone = losses_in "alone"
    assert(alone:numel() == 20 and alone[-1] < alone[0])
  end
  local losses = losses_in(folder)
  assert(losses:numel() == 20, losses:numel() .. " steps")
  runs.expect_near("losses", losses, alone, 1e-9)
end

return runs
