-- Classification and regression of texts and of pairs of texts by an encoder such as BERT, and the
-- masked language modelling that teaches it the language first.
local redco = require "redco"
local torch, metrics = redco.torch, redco.metrics

local o = redco.options {
  task = "classification",  -- or regression (labels are numbers), or masked_lm
  data = "",  -- JSONL of {"text", "text_pair" or not, "label"}, for masked_lm lines of text; "":
              -- the definitions beside this script
  model_dir = "",  -- the folder of an encoder to start from; "": a new BERT of this shape
  workdir = "workdir",
  resume = false,  -- continue from the newest checkpoint of workdir, if there is one
  seed = 42,
  n_model_shards = 1, zero = 0,
  n_epochs = 10,
  max_steps = 0,  -- more than 0 ends the run early
  global_batch_size = 32, per_device_batch_size = 32,
  max_length = 64,  -- in tokens; what is longer is cut off
  masked_fraction = 0.15,
  compute_dtype = "float32",
  learning_rate = 0,  -- 0: 1e-3 for masked_lm, 3e-4 otherwise; 2e-5 suits a published BERT
  warmup_ratio = 0.1, weight_decay = 0.01, grad_norm_clip = 1.0,
  hidden_size = 128, num_hidden_layers = 2, num_attention_heads = 4, intermediate_size = 256,
}
local here = redco.script_folder()
local is_new, is_masked = o.model_dir == "", o.task == "masked_lm"
local is_regression = o.task == "regression"
local own_data = ({ classification = "domains.jsonl", regression = "similarity.jsonl",
  masked_lm = "glosses.txt" })[o.task]
  or error("--task is classification, regression or masked_lm, got " .. o.task)
local path = o.data ~= "" and o.data or here .. "data/" .. own_data

local examples = is_masked and redco.data.lines(path) or redco.data.jsonl(path)
local train, held_out = redco.data.split(examples, { every = is_masked and 20 or 5 })

-- The classes, in alphabetical order, and their numbers from 0.
local classes, class_of = {}, {}
for i, example in (is_masked and redco.data.dataset(0, tostring) or examples):ipairs() do
  local label = example.label
  if label == nil or is_regression and type(label) ~= "number"
    or type(example.text) ~= "string" then
    error(("%s: example %d has the text %s and the label %s; expected a text and a %s"):format(path,
      i, tostring(example.text), tostring(label), is_regression and "number" or "class"))
  end
  if not class_of[label] then class_of[label], classes[#classes + 1] = true, label end
end
table.sort(classes, function(a, b) return tostring(a) < tostring(b) end)
for i, label in ipairs(classes) do class_of[label] = i - 1 end
local function number_of(row) return is_regression and row.label or class_of[row.label] end

local deployer = redco.Deployer {
  seed = o.seed, n_model_shards = o.n_model_shards, zero = o.zero, workdir = o.workdir }
local tokenizer = redco.Tokenizer.from_pretrained(is_new and here .. "data/tokenizer"
  or o.model_dir)

local config = is_masked and {} or is_regression and { num_labels = 1 }
  or { id2label = {}, label2id = {} }
for i, label in ipairs(config.id2label and classes or {}) do
  config.id2label[tostring(i - 1)], config.label2id[tostring(label)] = tostring(label), i - 1
end
local options = { task = is_masked and "masked_lm" or "sequence_classification",
  generator = deployer:gen_rng(), config = not is_new and config or nil }
if is_new then
  for _, name in ipairs { "hidden_size", "num_hidden_layers", "num_attention_heads",
    "intermediate_size" } do config[name] = o[name] end
  config.model_type, config.vocab_size = "bert", #tokenizer
  config.max_position_embeddings = math.max(o.max_length, 64)
end
local model = is_new and redco.models.from_config(config, options)
  or redco.models.from_pretrained(o.model_dir, options)

-- BERT's: of the chosen tokens 80 % become [MASK] and 10 % any token; the rest stay as they are.
local function mask_tokens(batch)
  local ids, special = batch.input_ids, batch.special_tokens_mask:bool()
  local chosen = torch.rand(ids.shape):lt(o.masked_fraction):logical_and(special:logical_not())
  local kind = torch.rand(ids.shape):masked_fill(chosen:logical_not(), 1)
  batch.labels = ids:masked_fill(chosen:logical_not(), -100)
  batch.input_ids = ids:masked_fill(kind:lt(0.8), tokenizer.mask_token_id)
    :where(kind:ge(0.9):logical_and(chosen):logical_not(), torch.randint(0, #tokenizer, ids.shape))
  batch.special_tokens_mask = nil
  return batch
end

local function collate_fn(rows)
  local texts, pairs_of, labels = {}, {}, {}
  for i, row in ipairs(rows) do
    texts[i] = is_masked and row or row.text
    if not is_masked then pairs_of[i], labels[i] = row.text_pair, number_of(row) end
  end
  local batch = tokenizer(texts, { text_pair = pairs_of[1] and pairs_of or nil, padding = true,
    truncation = true, max_length = o.max_length, return_special_tokens_mask = is_masked })
  if is_masked then return mask_tokens(batch) end
  batch.labels = torch.tensor(labels, { dtype = is_regression and "float32" or "int64" })
  return batch
end

local function pred_fn(_, params, batch)
  batch.labels = nil
  local logits = model(params, batch)
  return is_regression and logits:squeeze(-1) or logits:argmax(-1)
end

-- The metrics of GLUE.
local function scores(rows, preds)
  local found, labels = torch.stack(preds), {}
  for i, row in ipairs(rows) do labels[i] = number_of(row) end
  if is_regression then
    return { pearson = metrics.pearsonr(found, labels),
      spearman = metrics.spearmanr(found, labels) }
  end
  return { accuracy = metrics.accuracy(found, labels),
    f1 = metrics.f1(found, labels, { average = #classes == 2 and "binary" or "macro" }),
    matthews = metrics.matthews_correlation(found, labels) }
end

local schedule = deployer:get_lr_schedule_fn {
  train_size = #train, n_epochs = o.n_epochs,
  learning_rate = o.learning_rate > 0 and o.learning_rate or is_masked and 1e-3 or 3e-4,
  global_batch_size = o.global_batch_size, per_device_batch_size = o.per_device_batch_size,
  warmup_ratio = o.warmup_ratio,
}
local ckpt, info
if o.resume then ckpt, info = deployer:load_last_ckpt() end

local trainer = redco.Trainer {
  deployer = deployer, collate_fn = collate_fn, loss_fn = model.loss_fn,
  params = ckpt and ckpt.params or model.params,
  opt_state = ckpt and ckpt.opt_state, last_ckpt_info = info,
  compute_dtype = o.compute_dtype,
  optimizer = redco.optim.chain {
    redco.optim.clip_by_global_norm(o.grad_norm_clip),
    redco.optim.adamw { learning_rate = schedule, weight_decay = o.weight_decay,
      mask = function(_, param) return param:dim() > 1 end },
  },
  lr_schedule_fn = schedule,
}

trainer:fit {
  train_examples = train, eval_examples = held_out,
  n_epochs = o.n_epochs, max_steps = o.max_steps, save_last_ckpt = true,
  global_batch_size = o.global_batch_size, per_device_batch_size = o.per_device_batch_size,
  eval_predictor = not is_masked and trainer:get_default_predictor { pred_fn = pred_fn } or nil,
  eval_metric_fn = not is_masked and scores or nil,
}

local folder = o.workdir .. "/model"
model.save_pretrained(folder, { params = trainer.params })
tokenizer:save_pretrained(folder)
deployer:log_info("the model is in " .. folder)
