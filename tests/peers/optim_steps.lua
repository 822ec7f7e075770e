-- optim_steps.lua FOLDER: steps by hand for optim_peer.py. FOLDER/cases.lua returns the optimizers
-- by name, FOLDER/TYPE.safetensors has the start and the gradients of each step. Writes
-- FOLDER/NAME_TYPE.safetensors with the parameters after each step, and FOLDER/schedules.txt.
local redco = require "redco"

local torch = redco.torch
local folder = arg[1]
local cases = dofile(folder .. "/cases.lua")

for _, dtype in ipairs { "float64", "float32", "bfloat16" } do
  local stored = torch.load(("%s/%s.safetensors"):format(folder, dtype))
  local n_steps = 0
  while stored[("grad%d.b"):format(n_steps)] do n_steps = n_steps + 1 end
  for name, make in pairs(cases.optimizers) do
    local optimizer, params, result = make(redco.optim), {}, {}
    local keys = name:find "muon" and { "w", "v" } or { "w", "v", "b", "c" }
    for _, key in ipairs(keys) do params[key] = stored["start." .. key]:clone() end
    local state = optimizer:init(params)
    for i = 0, n_steps - 1 do
      local grads = {}
      for _, key in ipairs(keys) do grads[key] = stored[("grad%d.%s"):format(i, key)] end
      optimizer:step(grads, state, params)
      if cases.metrics then optimizer:observe(state, { loss = cases.metrics[i + 1] }) end
      for _, key in ipairs(keys) do result[("%d.%s"):format(i, key)] = params[key]:clone() end
    end
    if name:find "ema" then
      for key, average in pairs(optimizer:averages(state, params)) do
        result["ema." .. key] = average
      end
    end
    torch.save(result, ("%s/%s_%s.safetensors"):format(folder, name, dtype))
  end
end

local file = assert(io.open(folder .. "/schedules.txt", "w"))
for name, make in pairs(cases.schedules) do
  local schedule = make(redco.optim)
  for step = 0, cases.n_schedule_steps - 1 do
    file:write(("%s %d %.17g\n"):format(name, step, schedule(step)))
  end
end
file:close()
