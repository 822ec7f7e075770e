-- Speech to text: a Whisper listens to spoken digits and writes them.
local redco = require "redco"
local torch = redco.torch

local o = redco.options {
  data = "",  -- a JSONL file of {"audio": path, "text": text}; "": spoken digits, see below
  audio = "",  -- a WAV, FLAC or Ogg file to transcribe by the model in workdir or model_dir
  model_dir = "",  -- a folder of a Whisper to start from; "": a new one of the shape below
  workdir = "workdir",
  resume = false,  -- continue from the newest checkpoint of workdir, if there is one
  seed = 42,
  n_model_shards = 1,
  zero = 0,
  n_epochs = 3,
  max_steps = 0,  -- more than 0 ends the run early
  n_sequences = 3200,  -- of digits in an epoch
  n_held_out = 240,
  max_digits = 4,
  global_batch_size = 16,
  per_device_batch_size = 16,
  eval_per_device_batch_size = 32,
  max_tgt_len = 16,  -- tokens of a text, with those of the prompt
  num_beams = 1,
  compute_dtype = "float32",
  learning_rate = 0,  -- 0: 1e-3 for a new model, 1e-5 for one from a folder
  warmup_ratio = 0.1,
  weight_decay = 0.01,
  grad_norm_clip = 1.0,
  d_model = 96,
  encoder_layers = 2,
  decoder_layers = 2,
  num_attention_heads = 4,
  dropout = 0.0,
}
local here = redco.script_folder()

local deployer = redco.Deployer {
  seed = o.seed, n_model_shards = o.n_model_shards, zero = o.zero, workdir = o.workdir,
}

local is_new = o.model_dir == "" and o.audio == ""
local dir = o.model_dir ~= "" and o.model_dir or is_new and here .. "data/processor"
  or o.workdir .. "/model"
local tokenizer = redco.Tokenizer.from_pretrained(dir)
local extract = redco.data.feature_extractor(dir)
local sampling_rate = 16000

local function mono(path)
  return redco.data.audio(path, { sampling_rate = sampling_rate }):mean(0)
end

local function token(name) return tokenizer:convert_tokens_to_ids(name) end

local function new_model()
  local model = redco.models.from_config({
    model_type = "whisper", vocab_size = #tokenizer, d_model = o.d_model,
    encoder_layers = o.encoder_layers, decoder_layers = o.decoder_layers,
    encoder_attention_heads = o.num_attention_heads,
    decoder_attention_heads = o.num_attention_heads,
    encoder_ffn_dim = 4 * o.d_model, decoder_ffn_dim = 4 * o.d_model, dropout = o.dropout,
    max_source_positions = 150,  -- of 20 ms: the 3 seconds of preprocessor_config.json
    max_target_positions = 32,
    decoder_start_token_id = token "<|startoftranscript|>", bos_token_id = tokenizer.eos_token_id,
    eos_token_id = tokenizer.eos_token_id, pad_token_id = tokenizer.pad_token_id,
  }, { generator = deployer:gen_rng() })
  model.generation_config = {
    decoder_start_token_id = model.config.decoder_start_token_id,
    eos_token_id = tokenizer.eos_token_id, pad_token_id = tokenizer.pad_token_id,
    language = "en", lang_to_id = { ["<|en|>"] = token "<|en|>" },
    task = "transcribe", task_to_id = { transcribe = token "<|transcribe|>" },
    no_timestamps_token_id = token "<|notimestamps|>", is_multilingual = true,
  }
  return model
end

local model = is_new and new_model() or redco.models.from_pretrained(dir)

local function pred_fn(rng, params, batch)
  return (model.generate(params, batch, { max_new_tokens = o.max_tgt_len - 4,
    num_beams = o.num_beams }))
end

local function output_fn(sequences)
  return tokenizer:batch_decode(sequences, { skip_special_tokens = true })
end

if o.audio ~= "" then
  local batch = { input_features = (extract(mono(o.audio), { sampling_rate = sampling_rate })) }
  print(output_fn(pred_fn(nil, model.params, batch))[1])
  return
end

-- Sequences of one to max_digits digits by one voice, with pauses and some noise. Every eighth
-- voice is held out: it is not heard in training.
local function spoken_digits()
  local names = redco.data.lines(here .. "data/words.txt"):tolist()
  local voices = mono(here .. "data/digits.ogg"):view { 48, 10, 9600 }
  local function sequences(n, seed, is_held_out)
    return redco.data.dataset(n, function(i)
      local rng = torch.Generator(seed + i)
      local function draw(below)
        return torch.randint(0, below, { 1 }, { generator = rng }):item()
      end
      local voice = is_held_out and 8 * draw(6) or 8 * draw(6) + 1 + draw(7)
      local parts, words = {}, {}
      for k = 1, draw(o.max_digits) + 1 do
        local digit = draw(10)
        parts[2 * k - 1], parts[2 * k] = torch.zeros { draw(2400) }, voices[voice][digit]
        words[k] = names[digit + 1]
      end
      local audio = torch.cat(parts)
      local noise = torch.randn(audio.shape, { generator = rng }) * 0.003
      return { audio = audio + noise, text = table.concat(words) }
    end)
  end
  return function(epoch) return sequences(o.n_sequences, 1000000 * (epoch + 1)) end,
    sequences(o.n_held_out, 0, true)
end

local train, held_out
if o.data == "" then
  train, held_out = spoken_digits()
else
  train, held_out = redco.data.split(redco.data.jsonl(o.data), { every = 20 })
end

local function collate_fn(examples)
  local sounds, texts = {}, {}
  for i, example in ipairs(examples) do
    local audio = example.audio
    sounds[i] = type(audio) == "string" and mono(audio) or audio
    texts[i] = example.text
  end
  local tokens = tokenizer(texts,
    { padding = true, padding_side = "right", truncation = true, max_length = o.max_tgt_len })
  local labels = tokens.input_ids:masked_fill(tokens.attention_mask:eq(0), -100)
  return {
    input_features = (extract(sounds, { sampling_rate = sampling_rate })),
    labels = labels:narrow(1, 1, labels:size(1) - 1),  -- the model puts the start token before them
  }
end

local schedule = deployer:get_lr_schedule_fn {
  train_size = o.data == "" and o.n_sequences or #train, n_epochs = o.n_epochs,
  learning_rate = o.learning_rate > 0 and o.learning_rate or is_new and 1e-3 or 1e-5,
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
    local references = {}
    for i, example in ipairs(examples) do references[i] = example.text end
    return { word_error_rate = redco.metrics.word_error_rate(texts, references) }
  end,
}

local samples = {}
for i = 1, math.min(10, #held_out) do samples[i] = held_out[i] end
local texts = predictor:predict {
  examples = samples, params = trainer.params,
  per_device_batch_size = o.eval_per_device_batch_size,
}
for i, sample in ipairs(samples) do texts[i] = ("%s ->%s"):format(sample.text, texts[i]) end
deployer:log_info(table.concat(texts, "\n"), { title = "What is said, and what the model writes" })

local folder = o.workdir .. "/model"
model.save_pretrained(folder, { params = trainer.params })
tokenizer:save_pretrained(folder)
if deployer.process_id == 0 then
  local name = "/preprocessor_config.json"
  local file = assert(io.open(folder .. name, "w"))
  file:write(redco.data.read(dir .. name))
  file:close()
end
deployer:log_info("the model is in " .. folder)
