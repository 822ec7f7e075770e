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

return runs
