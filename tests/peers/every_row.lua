-- every_row.lua FOLDER...: what every_row_peer.py compares of the model in each folder: new models,
-- peft's adapters and our own, and the folder saved again.
local cases = require "model_cases"
local native = require "redco.native"
local redco = require "redco"

local lora, torch = redco.lora, redco.torch
local n_new = 4

local function keep_new(folder, found)
  for i = 0, n_new - 1 do
    local model = redco.models.from_config(folder, { generator = torch.Generator(i) })
    for name, tensor in pairs(model.params) do
      found[("new.%d.%s"):format(i, cases.file_name(model, name))] = tensor
    end
  end
end

local function run(folder)
  local found = {}
  keep_new(folder, found)
  local model = redco.models.from_pretrained(folder)
  local inputs = cases.random_inputs(torch.load(folder .. "/inputs.safetensors"), model)
  local function output(params)
    return torch.no_grad(function() return cases.called(model, params, inputs) end)
  end
  found.base = output(model.params)
  if native.file_exists(folder .. "/adapter/adapter_config.json") then
    local adapted = lora.from_pretrained(folder .. "/adapter", model.params)
    found.adapted = output(adapted)
    lora.save_pretrained(folder .. "/again", adapted)
    local config = redco.data.json(folder .. "/again/adapter_config.json")
    lora.save_pretrained(folder .. "/own", lora.add(model.params,
      { target_modules = config.target_modules, r = 2, modules_to_save = {} }))
  end
  if native.file_exists(folder .. "/tied/config.json") then
    local tied = redco.models.from_pretrained(folder .. "/tied")
    found.tied = torch.no_grad(function() return cases.called(tied, tied.params, inputs) end)
  end
  torch.save(found, folder .. "/found.safetensors")
  redco.models.from_pretrained(folder .. "/habits").save_pretrained(folder .. "/saved")
end

for _, folder in ipairs(arg) do
  local ok, message = xpcall(run, function(e) return debug.traceback(tostring(e), 2) end, folder)
  if not ok then
    local file = assert(io.open(folder .. "/error.txt", "w"))
    file:write(message)
    file:close()
  end
end
