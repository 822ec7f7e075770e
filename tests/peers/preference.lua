-- preference.lua FOLDER: computes the losses of FOLDER/jobs.json, their metrics and the gradients
-- of all parameters, for preference_peer.py.
local redco = require "redco"

local preference, torch = redco.preference, redco.torch
local folder = arg[1]
local jobs = redco.data.json(folder .. "/jobs.json")

local function model_of(job, kind)
  local task = kind == "reward" and "sequence_classification" or nil
  return redco.models.from_pretrained(("%s/%s/%s"):format(folder, job.model, kind),
    { dtype = "float64", task = task })
end

local function with(options, more)
  local all = {}
  for name, value in pairs(options) do all[name] = value end
  for name, value in pairs(more) do all[name] = value end
  return all
end

local function reference_logprobs(job, batch)
  local model = model_of(job, "reference")
  return torch.no_grad(function()
    return preference.sequence_logprobs(model, model.params, batch)
  end)
end

local functions = {}

for _, name in ipairs { "dpo", "cpo", "orpo" } do
  functions[name] = function(job, model, params)
    local batch = preference.collate(jobs.examples)
    local logps, counts = preference.sequence_logprobs(model, params, batch)
    local given = { logps = logps, counts = counts }
    if name == "dpo" then given.ref_logps = reference_logprobs(job, batch) end
    if name == "orpo" then  -- trl counts the tokens of the prompts, too
      local ids, mask = batch.input_ids:select(1, 0), batch.attention_mask:select(1, 0)
      given.nll_loss = model.loss(params, { input_ids = ids, attention_mask = mask,
        labels = ids:masked_fill(mask:eq(0), -100) }, { shift = true })
    end
    return preference[name](with(job.options, given))
  end
end

function functions.kto(job, model, params)
  local batch = preference.collate(jobs.unpaired)
  local logps = preference.sequence_logprobs(model, params, batch)
  local reference = reference_logprobs(job, batch)
  local given = { logps = logps:select(1, 0), ref_logps = reference:select(1, 0),
    desirable = batch.desirable }
  if job.options.loss_type ~= "apo_zero_unpaired" then
    given.kl_logps, given.ref_kl_logps = logps:select(1, 1), reference:select(1, 1)
  end
  return preference.kto(with(job.options, given))
end

function functions.reward(job, model, params)
  local batch = preference.collate(jobs.examples)
  local rewards = model(params, {
    input_ids = batch.input_ids:flatten(0, 1), attention_mask = batch.attention_mask:flatten(0, 1),
  }):reshape { -1, 2 }
  local options = with(job.options, { rewards = rewards })
  if options.with_margin then
    options.with_margin, options.margin = nil, torch.tensor(jobs.margins, { dtype = "float64" })
  end
  return preference.reward(options)
end

function functions.distillation(job, model, params)
  local batch = preference.collate(jobs.examples)
  local inputs = { input_ids = batch.input_ids:select(1, 0),
    attention_mask = batch.attention_mask:select(1, 0) }
  local teacher = model_of(job, "reference")
  return preference.distillation(with(job.options, {
    logits = model(params, inputs), labels = batch.labels:select(1, 0),
    teacher_logits = torch.no_grad(function() return teacher(teacher.params, inputs) end),
  }))
end

for _, job in ipairs(jobs.cases) do
  local model = model_of(job, job["function"] == "reward" and "reward" or "policy")
  local metrics
  local loss, grads = redco.value_and_grad(function(params)
    local value, _, more = functions[job["function"]](job, model, params)
    metrics = more or {}
    return value
  end)(model.params)
  local result = { loss = loss, grads = grads, metrics = {} }
  for name, value in pairs(metrics) do
    result.metrics[name] = torch.is_tensor(value) and value or torch.tensor(value + 0.0)
  end
  torch.save(result, ("%s/%s.safetensors"):format(folder, job.name))
end
