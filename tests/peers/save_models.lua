-- save_models.lua OUT: writes model folders and adapters, and what they compute on the inputs of
-- the reference cases: OUT/NAME, OUT/NAME.logits.safetensors. models_peer.py reads both.
local cases = require "model_cases"
local redco = require "redco"

local torch = redco.torch
local cases_folder, out = cases.folders[1], arg[1]

local function keep_logits(name, model, params, case)
  torch.no_grad(function()
    torch.save({ logits = cases.output(model, params, cases.forward_inputs(case)) },
      ("%s/%s.logits.safetensors"):format(out, name))
  end)
end

-- After one step of training nothing is as it was read.
local function trained(model, case)
  local trainer = redco.Trainer {
    deployer = redco.Deployer { seed = 1, verbose = false },
    params = model.params, optimizer = redco.optim.adamw { learning_rate = 0.01 },
    collate_fn = function()
      return cases.training_inputs(case, "batch0", not cases.predicts_next(model))
    end,
    loss_fn = function(_, _, params, batch) return cases.loss(model, params, batch) end,
  }
  trainer:train { examples = { 1 }, per_device_batch_size = 1 }
  return trainer.params
end

local max_shard_size = { llama = "50KB" }

for _, name in ipairs(cases.names) do
  local case = cases.open(cases_folder, name)
  local model = redco.models.from_pretrained(case.dir)
  local params = trained(model, case)
  model.save_pretrained(("%s/%s"):format(out, name),
    { params = params, max_shard_size = max_shard_size[name] })
  keep_logits(name, model, params, case)

  local fresh = redco.models.from_config(case.dir, { generator = torch.Generator(1) })
  fresh.save_pretrained(("%s/%s-fresh"):format(out, name))
  keep_logits(name .. "-fresh", fresh, fresh.params, case)

  local narrow = redco.models.from_pretrained(case.dir, { dtype = "bfloat16" })
  narrow.save_pretrained(("%s/%s-bfloat16"):format(out, name))
  local widened = redco.tree.map(function(t) return t:float() end, narrow.params)
  keep_logits(name .. "-bfloat16", narrow, widened, case)
end

-- Adapters that change what the model does.
local function keep_adapter(name, model, params, case)
  params = redco.tree.map(function(leaf) return leaf end, params)
  for key, leaf in pairs(params) do
    if key:find "lora_B" then params[key] = torch.randn_like(leaf, { dtype = leaf.dtype }) * 0.1 end
  end
  redco.lora.save_pretrained(("%s/%s"):format(out, name), params, { task_type = "CAUSAL_LM" })
  keep_logits(name, model, params, case)
end

for _, name in ipairs(cases.lora_names) do
  local case = cases.open(cases_folder, name)
  local model = redco.models.from_pretrained(case.base.dir)
  keep_adapter(name, model, redco.lora.from_pretrained(case.dir, model.params), case)
end

local case = cases.open(cases_folder, "llama")
local model = redco.models.from_pretrained(case.dir)
local params = redco.lora.add(model.params,
  { target_modules = { "q_proj", "o_proj" }, r = 3, lora_alpha = 5, use_rslora = true })
params = redco.lora.add(params, { target_modules = { "1.mlp.up_proj", "2.mlp.up_proj" }, r = 2 })
keep_adapter("lora_llama-mixed", model, params, case)
