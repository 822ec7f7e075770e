-- Text to text: a T5-like model that learns to translate, or whatever its pairs of texts show it.
local redco = require "redco"

local o = redco.options {
  data = "",  -- a JSONL file of pairs; "": sentences in English and Spanish, see sentences.lua
  n_sentences = 20000,
  n_held_out = 400,  -- of other sentences
  src_key = "source",
  tgt_key = "target",
  model_dir = "",  -- a folder to start from; "": a new model of the shape below
  tokenizer_dir = "",  -- "": the model's own, else the one beside this script
  workdir = "workdir",
  resume = false,  -- continue from the newest checkpoint of workdir, if there is one
  seed = 42,
  n_model_shards = 1,
  zero = 0,
  n_epochs = 2,
  max_steps = 0,  -- more than 0 ends the run early
  global_batch_size = 32,
  per_device_batch_size = 32,
  eval_per_device_batch_size = 64,
  eval_every = 40,  -- every 40th pair of a file is held out
  max_src_len = 512,
  max_tgt_len = 64,
  num_beams = 1,
  no_repeat_ngram_size = 0,  -- 3 keeps an uncertain model from writing a phrase again and again
  compute_dtype = "float32",
  learning_rate = 0,  -- of Adafactor; 0: 3e-2 for a new model, 1e-3 for one from a folder
  warmup_ratio = 0.03,
  weight_decay = 0,
  grad_norm_clip = 1.0,
  d_model = 128,
  d_ff = 512,
  num_layers = 2,
  num_heads = 4,
  dropout_rate = 0.1,
}
local here = redco.script_folder()
local is_new = o.model_dir == ""

local function renamed(pairs_of)
  local result = {}
  for i, pair in pairs_of:ipairs() do
    result[i] = {
      source = pair[o.src_key] or error(("pair %d has no '%s'"):format(i, o.src_key), 0),
      target = pair[o.tgt_key] or error(("pair %d has no '%s'"):format(i, o.tgt_key), 0),
    }
  end
  return result
end

local train, held_out
if o.data ~= "" then
  train, held_out = redco.data.split(renamed(redco.data.jsonl(o.data)), { every = o.eval_every })
else
  local sentences = dofile(here .. "sentences.lua")
  train, held_out = sentences(o.n_sentences, o.n_held_out, o.seed)
end

local deployer = redco.Deployer {
  seed = o.seed, n_model_shards = o.n_model_shards, zero = o.zero, workdir = o.workdir,
}
local tokenizer = redco.Tokenizer.from_pretrained(o.tokenizer_dir ~= "" and o.tokenizer_dir
  or is_new and here .. "data/tokenizer" or o.model_dir)

local function new_model()
  return redco.models.from_config({
    model_type = "t5", feed_forward_proj = "gated-gelu", vocab_size = #tokenizer,
    pad_token_id = tokenizer.pad_token_id, eos_token_id = tokenizer.eos_token_id,
    d_model = o.d_model, d_kv = o.d_model / o.num_heads, d_ff = o.d_ff,
    num_layers = o.num_layers, num_heads = o.num_heads, dropout_rate = o.dropout_rate,
  }, { generator = deployer:gen_rng() })
end
local model = is_new and new_model() or redco.models.from_pretrained(o.model_dir)
if not model.is_encoder_decoder then error(o.model_dir .. " is no encoder-decoder", 0) end

local function tokenize(examples, key, max_length)
  local texts = {}
  for i, example in ipairs(examples) do texts[i] = example[key] end
  return tokenizer(texts, { padding = true, truncation = true, max_length = max_length })
end

local function collate_fn(examples)
  local batch = tokenize(examples, "source", o.max_src_len)
  local targets = tokenize(examples, "target", o.max_tgt_len)
  batch.labels = targets.input_ids:masked_fill(targets.attention_mask:eq(0), -100)
  return batch
end

local function pred_fn(rng, params, batch)
  return model.generate(params, batch, {
    max_length = o.max_tgt_len, num_beams = o.num_beams,
    no_repeat_ngram_size = o.no_repeat_ngram_size,
  })
end

local function output_fn(sequences)
  return tokenizer:batch_decode(sequences, { skip_special_tokens = true })
end

local schedule = deployer:get_lr_schedule_fn {
  train_size = #train, n_epochs = o.n_epochs,
  learning_rate = o.learning_rate > 0 and o.learning_rate or is_new and 3e-2 or 1e-3,
  global_batch_size = o.global_batch_size, per_device_batch_size = o.per_device_batch_size,
  warmup_ratio = o.warmup_ratio,
}
local ckpt, info
if o.resume then ckpt, info = deployer:load_last_ckpt() end

local trainer = redco.Trainer {
  deployer = deployer,
  collate_fn = collate_fn,
  loss_fn = model.loss_fn,
  params = ckpt and ckpt.params or model.params,
  opt_state = ckpt and ckpt.opt_state,
  last_ckpt_info = info,
  compute_dtype = o.compute_dtype,
  optimizer = redco.optim.chain {
    redco.optim.clip_by_global_norm(o.grad_norm_clip),
    redco.optim.adafactor { learning_rate = schedule, weight_decay = o.weight_decay },
  },
  lr_schedule_fn = schedule,
}
local predictor = trainer:get_default_predictor { pred_fn = pred_fn, output_fn = output_fn }
local bleu_and_rouge = redco.metrics.bleu_and_rouge "target"

trainer:fit {
  train_examples = train,
  eval_examples = held_out,
  n_epochs = o.n_epochs,
  max_steps = o.max_steps,
  global_batch_size = o.global_batch_size,
  per_device_batch_size = o.per_device_batch_size,
  eval_per_device_batch_size = o.eval_per_device_batch_size,
  eval_predictor = predictor,
  save_last_ckpt = true,
  eval_metric_fn = function(examples, texts)
    local references = {}
    for i, example in ipairs(examples) do references[i] = { example.target } end
    local metrics = bleu_and_rouge(examples, texts)
    metrics.exact_match = redco.metrics.exact_match(texts, references)
    return metrics
  end,
  save_argmax_ckpt_by_metrics = { "bleu" },
}

local samples = { unpack(held_out, 1, 10) }
local texts = predictor:predict {
  examples = samples, params = trainer.params,
  per_device_batch_size = o.eval_per_device_batch_size,
}
for i, sample in ipairs(samples) do
  texts[i] = ("source: %s\ntarget: %s\noutput: %s"):format(sample.source, sample.target, texts[i])
end
deployer:log_info(table.concat(texts, "\n\n"), { title = "Held-out pairs" })

local folder = o.workdir .. "/model"
model.save_pretrained(folder, { params = trainer.params })
tokenizer:save_pretrained(folder)
deployer:log_info("the model is in " .. folder)
