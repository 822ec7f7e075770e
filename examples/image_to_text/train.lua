-- Image to text: a ViT looks at a picture, a GPT-2 says what it shows.
local emoji_pairs = require "emoji_pairs"
local redco = require "redco"

local o = redco.options {
  data = "",  -- a JSONL file of {"image": path, "caption": text}; "": pairs of emoji, see below
  n_emoji = 60,
  model_dir = "",  -- a folder to start from; "": a new model of the shape below, or of two parts:
  encoder_dir = "",  -- a ViT
  decoder_dir = "",  -- and a GPT-2
  tokenizer_dir = "",  -- "": the model's own, else the one beside this script
  workdir = "workdir",
  resume = false,  -- continue from the newest checkpoint of workdir, if there is one
  seed = 42,
  n_model_shards = 1,
  zero = 0,
  n_epochs = 4,
  max_steps = 0,  -- more than 0 ends the run early
  global_batch_size = 16,
  per_device_batch_size = 16,
  eval_per_device_batch_size = 64,
  max_tgt_len = 24,
  num_beams = 1,
  compute_dtype = "float32",
  learning_rate = 0,  -- 0: 1e-3 for a new model, 5e-5 for one from folders
  warmup_ratio = 0.05,
  weight_decay = 0.01,
  grad_norm_clip = 1.0,
  hidden_size = 128,
  num_hidden_layers = 3,
  num_attention_heads = 4,
  patch_size = 16,
  dropout = 0.0,
}
local here = redco.script_folder()

-- Captions such as "taxi left of rose". What is held out was never seen in training.
local function captioned_pairs()
  return emoji_pairs.new(here, o.n_emoji, o.seed):map(function(pair)
    return { image = pair.image, caption = ("%s %s %s"):format(pair.first,
      pair.is_row and "left of" or "above", pair.second) }
  end)
end

local train, held_out = redco.data.split(
  o.data ~= "" and redco.data.jsonl(o.data) or captioned_pairs(), { every = 20 })

local deployer = redco.Deployer {
  seed = o.seed, n_model_shards = o.n_model_shards, zero = o.zero, workdir = o.workdir,
}

-- The folders that say how images and texts are prepared.
local is_new = o.model_dir == "" and o.encoder_dir == ""
local image_dir, text_dir = o.model_dir, o.model_dir
if is_new then
  image_dir, text_dir = here .. "data/processor", here .. "data/processor"
elseif o.model_dir == "" then
  image_dir, text_dir = o.encoder_dir, o.decoder_dir
end
local process_images = redco.data.image_processor(image_dir)
local tokenizer = redco.Tokenizer.from_pretrained(o.tokenizer_dir ~= "" and o.tokenizer_dir
  or text_dir)
tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token

local function new_model()
  return redco.models.from_config({
    model_type = "vision-encoder-decoder",
    encoder = {
      model_type = "vit", image_size = 64, patch_size = o.patch_size, hidden_size = o.hidden_size,
      intermediate_size = 4 * o.hidden_size, num_hidden_layers = o.num_hidden_layers,
      num_attention_heads = o.num_attention_heads, hidden_dropout_prob = o.dropout,
    },
    decoder = {
      model_type = "gpt2", vocab_size = #tokenizer, n_positions = 64, n_embd = o.hidden_size,
      n_layer = o.num_hidden_layers, n_head = o.num_attention_heads,
      embd_pdrop = o.dropout, resid_pdrop = o.dropout, attn_pdrop = o.dropout,
      bos_token_id = tokenizer.eos_token_id, eos_token_id = tokenizer.eos_token_id,
    },
  }, { generator = deployer:gen_rng() })
end

local model = is_new and new_model()
  or o.model_dir ~= "" and redco.models.from_pretrained(o.model_dir)
  or redco.models.from_encoder_decoder_pretrained(o.encoder_dir, o.decoder_dir,
    { generator = deployer:gen_rng() })

local function collate_fn(examples)
  local images, captions = {}, {}
  for i, example in ipairs(examples) do
    local image = example.image
    images[i] = type(image) == "string" and redco.data.image(image) or image
    captions[i] = example.caption .. tokenizer.eos_token
  end
  local texts = tokenizer(captions,
    { padding = true, padding_side = "right", truncation = true, max_length = o.max_tgt_len })
  return {
    pixel_values = process_images(images),
    labels = texts.input_ids:masked_fill(texts.attention_mask:eq(0), -100),
  }
end

local function pred_fn(rng, params, batch)
  return model.generate(params, batch, { max_length = o.max_tgt_len, num_beams = o.num_beams })
end

local function output_fn(sequences)
  return tokenizer:batch_decode(sequences, { skip_special_tokens = true })
end

local schedule = deployer:get_lr_schedule_fn {
  train_size = #train, n_epochs = o.n_epochs,
  learning_rate = o.learning_rate > 0 and o.learning_rate or is_new and 1e-3 or 5e-5,
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
    redco.optim.adamw { learning_rate = schedule, weight_decay = o.weight_decay },
  },
  lr_schedule_fn = schedule,
}
local predictor = trainer:get_default_predictor { pred_fn = pred_fn, output_fn = output_fn }

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
    local captions = {}
    for i, example in ipairs(examples) do captions[i] = { example.caption } end
    return { exact_match = redco.metrics.exact_match(texts, captions),
      rouge1 = redco.metrics.rouge(texts, captions).rouge1 }
  end,
}

local samples = {}
for i = 1, math.min(10, #held_out) do samples[i] = held_out[i] end
local texts = predictor:predict {
  examples = samples, params = trainer.params,
  per_device_batch_size = o.eval_per_device_batch_size,
}
for i, sample in ipairs(samples) do texts[i] = ("%s -> %s"):format(sample.caption, texts[i]) end
deployer:log_info(table.concat(texts, "\n"), { title = "Held-out captions, and the model's" })

local folder = o.workdir .. "/model"
model.save_pretrained(folder, { params = trainer.params })
tokenizer:save_pretrained(folder)
if deployer.process_id == 0 then
  local name = "/preprocessor_config.json"
  local file = assert(io.open(folder .. name, "w"))
  file:write(redco.data.read(image_dir .. name))
  file:close()
end
deployer:log_info("the model is in " .. folder)
