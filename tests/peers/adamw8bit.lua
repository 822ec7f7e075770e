-- adamw8bit.lua FOLDER: steps of redco.optim.adamw8bit for adamw8bit_peer.py. FOLDER/start has the
-- parameters, FOLDER/gradN the gradients of each step. Writes FOLDER/stepN with the parameters and
-- the state after it.
local redco = require "redco"

local torch = redco.torch
local folder, n_steps = arg[1], tonumber(arg[2])
local function file(name) return ("%s/%s.safetensors"):format(folder, name) end

local params = torch.load(file "start")
local optimizer = redco.optim.adamw8bit { learning_rate = 0.01, betas = { 0.8, 0.95 }, eps = 1e-6,
  weight_decay = 0.1 }
local state = optimizer:init(params)
for i = 1, n_steps do
  optimizer:step(torch.load(file("grad" .. i)), state, params)
  local all = {}
  for name, param in pairs(params) do
    all[name] = param:clone()
    for _, slot in ipairs { "exp_avg", "exp_avg_sq", "absmax" } do
      local tensor = state.opt_state[slot][name]
      if tensor then all[name .. "." .. slot] = tensor:clone() end
    end
  end
  torch.save(all, file("step" .. i))
end
