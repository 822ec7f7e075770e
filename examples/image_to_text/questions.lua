-- Questions about pictures: a language model reads a picture in its text, and answers. It is a
-- small LLaVA, or low-rank adapters of a folder that reads images in texts, such as Qwen2.5-VL.
local emoji_pairs = require "emoji_pairs"
local redco = require "redco"
local torch = redco.torch

local o = redco.options {
  data = "",  -- a JSONL file of {"image": path, "question": text, "answer": text}; "": emoji
  n_emoji = 60,
  model_dir = "",  -- a folder to adapt, with a chat template; "": a new model
  target_modules = "q_proj,v_proj",  -- the layers that get adapters
  lora_r = 8,
  workdir = "workdir",
  resume = false,  -- continue from the newest checkpoint of workdir, if there is one
  seed = 42,
  n_model_shards = 1,
  zero = 0,
  n_epochs = 6,
  max_steps = 0,  -- more than 0 ends the run early
  global_batch_size = 16,
  per_device_batch_size = 16,
  eval_per_device_batch_size = 64,
  max_new_tokens = 12,
  compute_dtype = "float32",
  learning_rate = 3e-4,
  warmup_ratio = 0.05,
  grad_norm_clip = 1.0,
  hidden_size = 128,
  num_hidden_layers = 3,
  num_attention_heads = 4,
}
local here = redco.script_folder()

-- "What is left of the rose?", "What is below the taxi?", "What is here?" Pictures that are held
-- out were never seen.
local function emoji_questions()
  return emoji_pairs.new(here, o.n_emoji, o.seed):map(function(pair)
    local first, second = pair.first, pair.second
    local after = pair.is_row and "left of" or "above"
    local before = pair.is_row and "right of" or "below"
    local questions = {
      { "What is here?", ("%s %s %s"):format(first, after, second) },
      { ("What is %s the %s?"):format(after, second), first },
      { ("What is %s the %s?"):format(before, first), second },
    }
    local question, answer = unpack(questions[pair.number % 3 + 1])
    return { image = pair.image, question = question, answer = answer }
  end)
end

local train, held_out = redco.data.split(
  o.data ~= "" and redco.data.jsonl(o.data) or emoji_questions(), { every = 20 })

local deployer = redco.Deployer {
  seed = o.seed, n_model_shards = o.n_model_shards, zero = o.zero, workdir = o.workdir,
}

local is_new = o.model_dir == ""
local dir = is_new and here .. "data/questions" or o.model_dir
local tokenizer, process = redco.Tokenizer.from_pretrained(dir), redco.models.processor(dir)

local function new_model()
  local config = redco.data.json(dir .. "/config.json")
  for _, part in ipairs { "vision_config", "text_config" } do
    for _, key in ipairs { "hidden_size", "num_hidden_layers", "num_attention_heads" } do
      config[part][key] = o[key]
    end
  end
  return redco.models.from_config(config, { generator = deployer:gen_rng() })
end

local model = is_new and new_model() or redco.models.from_pretrained(dir)
local params = model.params
if not is_new then
  local modules = {}
  for name in o.target_modules:gmatch "[^,]+" do modules[#modules + 1] = name end
  params = redco.lora.add(params, { target_modules = modules, r = o.lora_r,
    lora_alpha = 2 * o.lora_r, generator = deployer:gen_rng() })
end

-- The picture and the question, up to where the answer begins; texts end together.
local function questions(examples)
  local texts, images = {}, {}
  for i, example in ipairs(examples) do
    local image = example.image
    images[i] = { type(image) == "string" and redco.data.image(image) or image }
    texts[i] = tokenizer:apply_chat_template({ { role = "user", content = {
      { type = "image" }, { type = "text", text = example.question } } } },
      { tokenize = false, add_generation_prompt = true })
  end
  return process(texts, images,
    { padding = true, padding_side = "left", add_special_tokens = false })
end

-- The same with the answers, of which each token is to be predicted.
local function collate_fn(examples)
  local batch, answers = questions(examples), {}
  for i, example in ipairs(examples) do answers[i] = example.answer .. tokenizer.eos_token end
  local own = tokenizer(answers,
    { padding = true, padding_side = "right", add_special_tokens = false })
  local labels = torch.full_like(batch.input_ids, -100)
  labels = torch.cat({ labels, own.input_ids:masked_fill(own.attention_mask:eq(0), -100) }, 1)
  batch.labels = torch.constant_pad_nd(labels:narrow(1, 1, labels:size(1) - 1), { 0, 1 }, -100)
  for _, name in ipairs { "input_ids", "attention_mask" } do
    batch[name] = torch.cat({ batch[name], own[name] }, 1)
  end
  return batch
end

local schedule = deployer:get_lr_schedule_fn {
  train_size = #train, n_epochs = o.n_epochs,
  learning_rate = o.learning_rate,
  global_batch_size = o.global_batch_size, per_device_batch_size = o.per_device_batch_size,
  warmup_ratio = o.warmup_ratio,
}
local optimizer = redco.optim.chain {
  redco.optim.clip_by_global_norm(o.grad_norm_clip),
  redco.optim.adamw { learning_rate = schedule, weight_decay = 0.01 },
}
local ckpt, info
if o.resume then ckpt, info = deployer:load_last_ckpt() end

local trainer = redco.Trainer {
  deployer = deployer,
  collate_fn = collate_fn,
  loss_fn = model.loss_fn,
  params = ckpt and ckpt.params or params,
  opt_state = ckpt and ckpt.opt_state,
  last_ckpt_info = info,
  compute_dtype = o.compute_dtype,
  optimizer = is_new and optimizer or redco.lora.freeze_base(optimizer, params),
  lr_schedule_fn = schedule,
}

local predictor = redco.Predictor {
  deployer = deployer,
  collate_fn = questions,
  pred_fn = function(_, given, batch)
    local first = batch.input_ids:size(1)
    local ids = model.generate(given, batch, { max_new_tokens = o.max_new_tokens })
    return ids:narrow(1, first, ids:size(1) - first)
  end,
  output_fn = function(sequences)
    return tokenizer:batch_decode(sequences, { skip_special_tokens = true })
  end,
}

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
    local answers = {}
    for i, example in ipairs(examples) do answers[i] = { example.answer } end
    return { exact_match = redco.metrics.exact_match(texts, answers) }
  end,
}

local samples = {}
for i = 1, math.min(10, #held_out) do samples[i] = held_out[i] end
local texts = predictor:predict {
  examples = samples, params = trainer.params,
  per_device_batch_size = o.eval_per_device_batch_size,
}
for i, sample in ipairs(samples) do texts[i] = ("%s %s"):format(sample.question, texts[i]) end
deployer:log_info(table.concat(texts, "\n"), { title = "Held-out questions, and the answers" })

local folder = o.workdir .. "/model"
if is_new then
  model.save_pretrained(folder, { params = trainer.params })
  tokenizer:save_pretrained(folder)
  if deployer.process_id == 0 then
    local name = "/preprocessor_config.json"
    local file = assert(io.open(folder .. name, "w"))
    file:write(redco.data.read(dir .. name))
    file:close()
  end
else
  redco.lora.save_pretrained(folder, trainer.params, { base_model_name_or_path = dir })
end
deployer:log_info("the model is in " .. folder)
