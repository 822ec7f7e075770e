--- Whether a training of the GPT of tests/cluster went as it goes in one process.
local program = require "program"
local torch = require "redco.torch"

local training = { source = assert(os.getenv "REDCO_SOURCE") .. "/tests/cluster/" }

--- The words of a command that trains in `n` processes together, 20 steps on batches of 8: with
--- train.lua of tests/cluster, or another of its scripts.
function training.words(n, workdir, script)
  return ("%s%s --workdir=%s/%s --per_device_batch_size=%d"):format(training.source,
    script or "train.lua", program.folder, workdir, 8 / n)
end

--- The losses of the last 20 steps.
local function losses(workdir)
  local all = {}
  local path = ("%s/%s/gpt-float64-zero0/metrics.jsonl"):format(program.folder, workdir)
  for line in program.read(path):gmatch "[^\n]+" do
    all[#all + 1] = tonumber(line:match '"loss":([^,}]+)')
  end
  assert(#all >= 20, "there are no 20 steps")
  return torch.tensor({ unpack(all, #all - 19) }, { dtype = "float64" })
end

local expected

--- Fails unless it went so.
function training.expect_done(workdir)
  if not expected then
    local code, _, err = program.shell('"$REDCO_LUA" ' .. training.words(1, "alone"))
    assert(code == 0, err)
    expected = losses "alone"
    assert(expected[-1] < expected[0])
  end
  local actual = losses(workdir)
  local off = (actual - expected):abs():max():item() / expected:abs():max():item()
  if off > 1e-9 or off ~= off then
    error(("losses are %g off\nexpected %s\ngot %s"):format(off, tostring(expected),
      tostring(actual)), 2)
  end
end

return training
