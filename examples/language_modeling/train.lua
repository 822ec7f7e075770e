-- Language modelling: a LLaMA or a GPT-2 learns to write on, from scratch or from a model's folder.
local redco = require "redco"

local o = redco.options {
  data = "",  -- a text file, or NAME.bin of its tokens; "": the corpus beside this script
  packing = "wrapped",  -- or "bfd": each paragraph by itself
  num_workers = 2,
  model_dir = "",  -- a folder to start from; "": a new model of the shape below
  tokenizer_dir = "",  -- "": the model's own, or, for a new one, the one beside this script
  workdir = "workdir",
  resume = false,  -- continue from the newest checkpoint of workdir, if there is one
  seed = 42,
  n_model_shards = 1,
  zero = 0,
  sequence_parallel = false,
  n_epochs = 2,
  max_steps = 0,  -- more than 0 ends the run early
  save_ckpt_every_k_steps = 0,  -- beside those after each epoch
  global_batch_size = 4,
  per_device_batch_size = 4,
  context_length = 256,
  compute_dtype = "float32",
  learning_rate = 0,  -- 0: 3e-3 for a new model, 5e-5 for one from a folder
  warmup_ratio = 0.05,
  weight_decay = 0.1,
  grad_norm_clip = 1.0,
  model_type = "llama",  -- or "gpt2"
  n_embd = 128,
  n_layer = 4,
  n_head = 4,
  dropout = 0.0,  -- gpt2 only
  prompt = "The king said",
  max_new_tokens = 240,
  temperature = 0.7,
}
local here = redco.script_folder()
local is_new = o.model_dir == ""

local deployer = redco.Deployer {
  seed = o.seed, n_model_shards = o.n_model_shards, zero = o.zero,
  sequence_parallel = o.sequence_parallel, workdir = o.workdir,
}
local tokenizer = redco.Tokenizer.from_pretrained(o.tokenizer_dir ~= "" and o.tokenizer_dir
  or is_new and here .. "data/tokenizer" or o.model_dir)

local configs = {
  gpt2 = {
    n_positions = o.context_length, n_embd = o.n_embd, n_layer = o.n_layer, n_head = o.n_head,
    embd_pdrop = o.dropout, resid_pdrop = o.dropout, attn_pdrop = o.dropout,
  },
  llama = {
    max_position_embeddings = o.context_length, hidden_size = o.n_embd,
    intermediate_size = 3 * o.n_embd, num_hidden_layers = o.n_layer, num_attention_heads = o.n_head,
  },
}
local function new_model()
  local config = configs[o.model_type]
    or error("--model-type is gpt2 or llama, got " .. o.model_type)
  config.model_type, config.vocab_size = o.model_type, #tokenizer
  config.bos_token_id, config.eos_token_id = tokenizer.bos_token_id, tokenizer.eos_token_id
  return redco.models.from_config(config, { generator = deployer:gen_rng() })
end
local model = is_new and new_model() or redco.models.from_pretrained(o.model_dir)

-- An example is `context_length` tokens and the one that follows each. A text is read by paragraphs
-- that are put together to rows; of a file of tokens rows are read. Neither is held in memory.
local function new_rows(path)
  if path:match "%.bin$" then
    return redco.data.tokens(path, { seq_len = o.context_length }):map(function(row)
      return { input_ids = row:narrow(0, 0, o.context_length),
        labels = row:narrow(0, 1, o.context_length) }
    end)
  end
  local paragraphs = redco.data.paragraphs(path):map(function(text)
    return tokenizer:encode(text .. "\n\n", { add_special_tokens = false })
  end)
  return redco.data.pack(paragraphs, { seq_len = o.context_length, strategy = o.packing })
end

local train, held_out = redco.data.split(
  new_rows(o.data ~= "" and o.data or here .. "data/corpus.txt"), { every = 20 })

local schedule = deployer:get_lr_schedule_fn {
  train_size = #train, n_epochs = o.n_epochs,
  learning_rate = o.learning_rate > 0 and o.learning_rate or is_new and 3e-3 or 5e-5,
  global_batch_size = o.global_batch_size, per_device_batch_size = o.per_device_batch_size,
  schedule_type = "cosine", warmup_ratio = o.warmup_ratio,
}
local ckpt, info
if o.resume then ckpt, info = deployer:load_last_ckpt() end

local trainer = redco.Trainer {
  deployer = deployer,
  collate_fn = redco.data.default_collate,
  num_workers = o.num_workers,
  loss_fn = model.loss_fn,
  params = ckpt and ckpt.params or model.params,
  opt_state = ckpt and ckpt.opt_state,
  last_ckpt_info = info,
  compute_dtype = o.compute_dtype,
  optimizer = redco.optim.chain {
    redco.optim.clip_by_global_norm(o.grad_norm_clip),
    redco.optim.adamw {
      learning_rate = schedule, betas = { 0.9, 0.95 }, weight_decay = o.weight_decay,
      mask = function(_, param) return param:dim() > 1 end,
    },
  },
  lr_schedule_fn = schedule,
}

trainer:fit {
  train_examples = train,
  eval_examples = held_out,
  n_epochs = o.n_epochs,
  max_steps = o.max_steps,
  global_batch_size = o.global_batch_size,
  per_device_batch_size = o.per_device_batch_size,
  save_ckpt_every_k_steps = o.save_ckpt_every_k_steps,
  keep_last_k_ckpts = 2,
  save_argmin_ckpt_by_metrics = { "loss" },
  save_last_ckpt = true,
}

local written = model.generate(trainer.params, tokenizer { o.prompt }, {
  max_new_tokens = o.max_new_tokens, do_sample = true, temperature = o.temperature,
  rng = deployer:gen_rng(),
})
deployer:log_info(tokenizer:decode(written[0], { skip_special_tokens = true }),
  { title = "Text that the model writes" })

local folder = o.workdir .. "/model"
model.save_pretrained(folder, { params = trainer.params })
tokenizer:save_pretrained(folder)
deployer:log_info("the model is in " .. folder)
