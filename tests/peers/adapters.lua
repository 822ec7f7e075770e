-- adapters.lua FOLDER NAME ...: opens the base and the adapter that peft has written in each folder
-- FOLDER/NAME, and writes what it computes, with the adapter and merged; writes the adapter again;
-- and trains new adapters. adapters_peer.py reads all of this. Gradients of peft are in a
-- folder of adapters, too.
local redco = require "redco"

local lora, torch = redco.lora, redco.torch

-- The gradients of the adapters for the loss of adapters_peer.py.
local function gradients(model, job, params, inputs)
  local tracked, found = {}, {}
  for key, leaf in pairs(params) do
    local is_adapter = torch.is_tensor(leaf) and key:find "%.lora_"
    tracked[key] = is_adapter and leaf:clone():requires_grad_() or leaf
  end
  local outputs = model(tracked, inputs)
  -- The first of what the model of transformers returns: where spans begin.
  if job.task == "question_answering" then outputs = outputs:select(-1, 0) end
  outputs:float():square():mean():backward()
  for key, leaf in pairs(tracked) do
    if torch.is_tensor(leaf) and leaf.grad then found[key] = leaf.grad end
  end
  return found
end

-- Trains the adapters that the job describes, for two steps.
local function trained(model, job, inputs)
  local options = { r = 4, lora_alpha = 8, target_modules = job.target_modules,
    modules_to_save = job.modules_to_save, task_type = job.task_type, generator = redco.Rng(3) }
  for key, value in pairs(job.options or {}) do options[key] = value end
  local params = lora.add(model.params, options)
  local trainer = redco.Trainer {
    deployer = redco.Deployer { seed = 1, verbose = false }, params = params,
    optimizer = lora.freeze_base(redco.optim.adamw { learning_rate = 0.05 }),
    collate_fn = function() return inputs end,
    loss_fn = function(_, _, p, batch) return model(p, batch):float():square():mean() end,
  }
  for _ = 1, 2 do trainer:train { examples = { 1, 2 }, per_device_batch_size = 2 } end
  return trainer.params
end

for i = 2, #arg do
  local folder = arg[1] .. "/" .. arg[i]
  local job = redco.data.json(folder .. "/job.json")
  local inputs = torch.load(folder .. "/expected.safetensors")
  inputs.logits = nil
  local model = redco.models.from_pretrained(folder .. "/base", { task = job.task })
  local function logits(params)
    return torch.no_grad(function() return model(params, inputs) end)
  end

  local params = lora.from_pretrained(folder .. "/adapter", model.params)
  local merged = lora.merge(params)
  model.save_pretrained(folder .. "/merged", { params = merged })
  local reopened = redco.models.from_pretrained(folder .. "/merged", { task = job.task })
  torch.save({
    opened = logits(params), merged = logits(merged),
    reopened = torch.no_grad(function() return reopened(reopened.params, inputs) end),
  }, folder .. "/opened.safetensors")
  lora.save_pretrained(folder .. "/again", params, { task_type = job.task_type })
  torch.save({ logits = logits(params) }, folder .. "/again.safetensors")

  torch.save(gradients(model, job, params, inputs), folder .. "/own_gradients.safetensors")
  local theirs = {}
  for key, leaf in pairs(lora.from_pretrained(folder .. "/gradients", model.params)) do
    if torch.is_tensor(leaf) and key:find "%.lora_" then theirs[key] = leaf end
  end
  torch.save(theirs, folder .. "/gradients.safetensors")

  if job.trains then
    local own = trained(model, job, inputs)
    assert((logits(own) - logits(model.params)):abs():max():item() > 1e-3)
    lora.save_pretrained(folder .. "/trained", own, { task_type = job.task_type })
    torch.save({ logits = logits(own) }, folder .. "/trained.safetensors")
  end
end
