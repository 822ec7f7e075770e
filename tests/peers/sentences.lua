-- sentences.lua FOLDER: vectors, losses and scores for sentences_peer.py.
local redco = require "redco"

local contrastive, metrics, torch = redco.contrastive, redco.metrics, redco.torch
local folder = arg[1]
local jobs = redco.data.json(folder .. "/jobs.json")

-- ---- vectors of texts ----

local function vectors_of(dir, texts, max_length)
  local model = redco.models.from_pretrained(dir, { task = "features" })
  local tokenizer = redco.Tokenizer.from_pretrained(dir)
  local batch = tokenizer(texts,
    { padding = true, truncation = true, max_length = max_length })
  return torch.no_grad(function() return model(model.params, batch) end), model, tokenizer
end

local found = { prompts = {} }
for i, job in ipairs(jobs.vectors) do
  local vectors, model, tokenizer = vectors_of(job.dir, job.texts, job.max_length)
  found["vectors_" .. i] = vectors
  if job.save then
    model.save_pretrained(job.save)
    tokenizer:save_pretrained(job.save)
  end
  if model.sentence_pooling.max_seq_length ~= job.max_length then error(job.dir) end
  for name, prompt in pairs(job.prompts or {}) do
    if model.sentence_pooling.prompts[name] ~= prompt then error(job.dir .. ": " .. name) end
  end
end

-- ---- vectors of tokens, and scores of pairs ----

for i, job in ipairs(jobs.tokens) do
  local model = redco.models.from_pretrained(job.dir)
  local tokenizer = redco.Tokenizer.from_pretrained(job.dir)
  local batch = tokenizer(job.texts, { padding = true })
  local vectors = torch.no_grad(function() return model(model.params, batch) end)
  found["tokens_" .. i] = vectors * batch.attention_mask:unsqueeze(-1)
  model.save_pretrained(job.save)
  tokenizer:save_pretrained(job.save)
  local again = redco.models.from_pretrained(job.save)
  local same = torch.no_grad(function() return again(again.params, batch) end)
  if not same:equal(vectors) then error(job.dir .. ": saved and read again, the vectors differ") end
end

local cross = redco.models.from_pretrained(jobs.cross.dir)
local tokenizer = redco.Tokenizer.from_pretrained(jobs.cross.dir)
local firsts, seconds = {}, {}
for i, pair in ipairs(jobs.cross.pairs) do firsts[i], seconds[i] = pair[1], pair[2] end
found.cross = torch.no_grad(function()
  return cross(cross.params, tokenizer(firsts, { text_pair = seconds, padding = true }))
end):squeeze(-1):sigmoid()
cross.save_pretrained(jobs.cross.save)
tokenizer:save_pretrained(jobs.cross.save)

-- ---- folders made here ----

for _, job in ipairs(jobs.made) do
  local model = redco.models.from_pretrained(jobs.base, { task = "features" })
  model.set_sentence_pooling(job.options)
  model.save_pretrained(job.dir)
  redco.Tokenizer.from_pretrained(jobs.base):save_pretrained(job.dir)
  found["made_" .. job.name] = vectors_of(job.dir, jobs.texts, job.options.max_seq_length)
end

-- ---- losses ----

for i, job in ipairs(jobs.losses) do
  local given = {}
  for j, rows in ipairs(job.vectors) do given[j] = torch.tensor(rows, { dtype = "float64" }) end
  local options = job.options
  local own = options.options or options
  if job.labels then own.labels = torch.tensor(job.labels, { dtype = "float64" }) end
  local loss, grads = redco.value_and_grad(function(vectors)
    return (contrastive[job.name](vectors, options))
  end)(given)
  found["loss_" .. i] = loss
  for j, grad in ipairs(grads) do found[("loss_%d_grad_%d"):format(i, j)] = grad end
end

-- ---- rankings ----

for i, job in ipairs(jobs.rankings) do
  local scores = torch.tensor(job.scores)
  local values = {}
  for j, name in ipairs { "recall_at_k", "mean_reciprocal_rank", "ndcg_at_k" } do
    values[j] = metrics[name](scores, job.relevant, { k = job.k })
  end
  found["ranking_" .. i] = torch.tensor(values, { dtype = "float64" })
end

found.prompts = nil
torch.save(found, folder .. "/found.safetensors")
