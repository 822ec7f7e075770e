-- random_layouts.lua FOLDER...: models of the cases that random_models/ writes, on as many model
-- shards as there are processes: the loss and the gradients are those of whole tensors, and nothing
-- is gathered for want of a rule.
local cases = require "model_cases"
local redco = require "redco"
local testing = require "testing"
local traffic = require "traffic"

local torch = redco.torch
local deployer = redco.Deployer {
  seed = 1, n_model_shards = tonumber(os.getenv "WORLD_SIZE"), verbose = false,
}

-- All processes must go through tables in the same order.
local function sorted_keys(map)
  local keys = {}
  for key in pairs(map) do keys[#keys + 1] = key end
  table.sort(keys)
  return keys
end

-- Some are zero except for rounding, which grows with the others.
local function expect_gradients(found, expected)
  local largest = 0
  for _, gradient in pairs(expected) do
    largest = math.max(largest, gradient:abs():max():item())
  end
  for _, name in ipairs(sorted_keys(expected)) do
    if found[name] then
      local size = math.max(expected[name]:norm():item(), 1e-2)
      local ok, message = pcall(testing.expect_close, found[name]:full(), expected[name], 2e-3,
        math.max(5e-4 * size, 1e-6 * largest))
      if not ok then error(name .. ": " .. message, 0) end
    end
  end
end

local function check(folder)
  local model, whole = redco.models.from_pretrained(folder), {}
  for _, name in ipairs(sorted_keys(model.params)) do
    whole[name] = model.params[name]:full():clone()
  end
  local batch = cases.random_inputs(torch.load(folder .. "/inputs.safetensors"), model)
  local pooling = redco.data.json(folder .. "/case.json").pooling
  local options = pooling and { pooling = pooling }
  local function loss_of(params, given) return (cases.loss(model, params, given, options)) end
  local loss, gradients = redco.value_and_grad(function(params)
    return loss_of(params, batch)
  end)(whole)
  local trainer = redco.Trainer {
    deployer = deployer, params = model.params, optimizer = redco.optim.sgd { learning_rate = 0.1 },
    collate_fn = function() return batch end,
    loss_fn = function(_, _, params, given) return loss_of(params, given) end,
    train_step_fn = function(_, _, given, defaults)
      local here, found = defaults.value_and_grad(function(params)
        return loss_of(params, given)
      end)
      testing.expect_close(here:full(), loss, 1e-4, 1e-4)
      expect_gradients(found, gradients)
      return { loss = here, norm = defaults.apply_gradients(found) }
    end,
  }
  trainer:train { examples = { 1 }, per_device_batch_size = 1 }
end

local n_gathered = {}
for _, folder in ipairs(arg) do
  testing.test(folder:match "[^/]*$", function()
    check(folder)
    for operator, calls in pairs(traffic.gathered_without_rule()) do
      local n = calls - (n_gathered[operator] or 0)
      n_gathered[operator] = calls
      if n > 0 then error(("%s was gathered %d times"):format(operator, n)) end
    end
  end)
end
testing.finish()
