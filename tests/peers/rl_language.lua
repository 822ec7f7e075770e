-- rl_language.lua FOLDER: computes the losses of FOLDER/jobs.json, their metrics and the gradients
-- of all parameters, and the advantages of its rewards, for rl_language_peer.py.
local redco = require "redco"

local language, torch = redco.rl.language, redco.torch
local folder = arg[1]
local jobs = redco.data.json(folder .. "/jobs.json")
local given = torch.load(folder .. "/given.safetensors")

-- Prompts and completions are adjacent here, and padding is on the right.
local length = 0
for i, prompt in ipairs(jobs.prompts) do
  length = math.max(length, #prompt + #jobs.completions[i])
end

-- Numbers of completions [n, T] as those of the labels that they are for.
local function aligned(values)
  local t = torch.zeros({ #jobs.prompts, length }, { dtype = "float64" })
  for i, prompt in ipairs(jobs.prompts) do
    local n = #jobs.completions[i]
    t[i - 1]:narrow(0, #prompt - 1, n):copy_(values[i - 1]:narrow(0, 0, n))
  end
  return t
end

local ids, labels = {}, {}
for i, prompt in ipairs(jobs.prompts) do
  ids[i], labels[i] = {}, {}
  for at = 1, length do
    ids[i][at] = prompt[at] or jobs.completions[i][at - #prompt] or 0
    local label = jobs.completions[i][at - #prompt + 1]
    labels[i][at] = at >= #prompt and jobs.is_counted[i] and label or -100
  end
end
local batch = { input_ids = torch.tensor(ids), labels = torch.tensor(labels) }

local function model_of(job, kind)
  return redco.models.from_pretrained(("%s/%s/%s"):format(folder, job.model, kind),
    { dtype = "float64" })
end

for _, job in ipairs(jobs.cases) do
  local model, reference = model_of(job, "policy"), model_of(job, "reference")
  local settings = { temperature = job.temperature }
  local metrics
  local loss, grads = redco.value_and_grad(function(params)
    local all = { labels = batch.labels, advantages = given.advantages,
      max_completion_length = jobs.max_completion_length }
    for name, value in pairs(job.options) do all[name] = value end
    local _
    all.logps, _, all.entropies = model.logprobs(params, batch,
      { temperature = job.temperature, entropy = true })
    if not job.is_on_policy then all.old_logps = aligned(given[job.name .. ".old_logps"]) end
    if job.options.importance_sampling_cap then
      all.sampler_logps = aligned(given[job.name .. ".sampler_logps"])
    end
    all.ref_logps = torch.no_grad(function()
      return (reference.logprobs(reference.params, batch, settings))
    end)
    local value, weight, more = language.loss(all)
    assert(weight)
    metrics = more
    return value
  end)(model.params)
  torch.save({ loss = loss, grads = grads, metrics = metrics },
    ("%s/%s.safetensors"):format(folder, job.name))
end

local found = {}
for _, kind in ipairs { "grpo", "grpo_batch", "dr_grpo", "rloo" } do
  found[kind] = language.advantages(given.rewards, { kind = kind })
end
torch.save(found, folder .. "/advantages.safetensors")
