-- Teaches a chat model a tone by preferences: of two answers it shall like the better one more than
-- it does now (DPO, arXiv 2305.18290). The reference is the model without its low-rank adapters.
local redco = require "redco"
local torch, lora, preference = redco.torch, redco.lora, redco.preference

local o = redco.options {
  model = "",  -- a GGUF file or a model folder; "": SmolLM2-135M-Instruct, fetched the first time
  data = "",  -- JSON lines with "prompt", "chosen" and "rejected"; "": the pairs beside this script
  workdir = "workdir",
  resume = false,  -- continue from the newest checkpoint of workdir, if there is one
  seed = 42,
  n_model_shards = 1, zero = 0,
  n_epochs = 1,
  max_steps = 0,  -- more than 0 ends the run early
  global_batch_size = 8, per_device_batch_size = 8,
  compute_dtype = "float32",
  learning_rate = 1e-3,
  beta = 0.1,  -- how much a departure from the reference costs
  rpo_alpha = 1,  -- the weight of the chosen answers' own loss; 0: DPO alone
  max_length = 128,  -- of tokens; longer answers are cut
  target_modules = { "q_proj", "v_proj" },
  r = 8, lora_alpha = 16,
  n_samples = 3,  -- held-out prompts to answer before and after
}

local here = redco.script_folder()
local path = o.model ~= "" and o.model
  or assert(io.popen("'" .. here .. "../fetch.sh'"):read "*l", "fetch.sh found no model")
local tokenizer = redco.Tokenizer.from_pretrained(path)

local deployer = redco.Deployer {
  seed = o.seed, n_model_shards = o.n_model_shards, zero = o.zero, workdir = o.workdir,
}
local model = redco.models.from_pretrained(path)
local params = lora.add(model.params, { target_modules = o.target_modules, r = o.r,
  lora_alpha = o.lora_alpha, generator = deployer:gen_rng() })

local train, held_out = redco.data.split(
  redco.data.preferences(o.data ~= "" and o.data or here .. "data/pairs.jsonl", {
    tokenizer = tokenizer, max_length = o.max_length, truncation = "tokens", deployer = deployer,
  }), { every = 6 })

local function collate_fn(examples)
  return preference.collate(examples, { pad_token_id = tokenizer.pad_token_id })
end

-- The log-probabilities of both answers, their numbers of tokens, and those of the reference.
local function logps_of(p, batch)
  local logps, counts = preference.sequence_logprobs(model, p, batch)
  return logps, counts, torch.no_grad(function()
    return (preference.sequence_logprobs(model, lora.base(p), batch))
  end)
end

local function loss_fn(_, _, p, batch)
  local logps, counts, ref_logps = logps_of(p, batch)
  return preference.dpo { logps = logps, counts = counts, ref_logps = ref_logps, beta = o.beta,
    rpo_alpha = o.rpo_alpha }
end

local schedule = deployer:get_lr_schedule_fn {
  train_size = #train, n_epochs = o.n_epochs, learning_rate = o.learning_rate,
  global_batch_size = o.global_batch_size, per_device_batch_size = o.per_device_batch_size,
  schedule_type = "linear", warmup_ratio = 0.1,
}
local ckpt, info
if o.resume then ckpt, info = deployer:load_last_ckpt { params = params } end

local trainer = redco.Trainer {
  deployer = deployer, collate_fn = collate_fn, loss_fn = loss_fn,
  params = ckpt and ckpt.params or params, opt_state = ckpt and ckpt.opt_state,
  last_ckpt_info = info, compute_dtype = o.compute_dtype,
  optimizer = lora.freeze_base(redco.optim.adamw { learning_rate = schedule }),
  lr_schedule_fn = schedule,
}

-- Answers to held-out prompts, by greedy search.
local function show(title)
  local lines = {}
  for i = 1, math.min(o.n_samples, #held_out) do
    local prompt = held_out[i].prompt
    local ids = model.generate(trainer.params, { input_ids = prompt:unsqueeze(0) },
      { max_new_tokens = 60 })[0]
    lines[i] = tokenizer:decode(prompt, { skip_special_tokens = true })
      .. tokenizer:decode(ids:slice(0, prompt:size(0)), { skip_special_tokens = true })
  end
  deployer:log_info(table.concat(lines, "\n\n"), { title = title })
end

show "Before the training"
trainer:fit {
  train_examples = train, eval_examples = held_out,
  n_epochs = o.n_epochs, max_steps = o.max_steps,
  global_batch_size = o.global_batch_size, per_device_batch_size = o.per_device_batch_size,
  eval_predictor = trainer:get_default_predictor {
    pred_fn = function(_, p, batch)
      local logps, _, ref_logps = logps_of(p, batch)
      local gains = logps - ref_logps
      return gains:select(1, 0) - gains:select(1, 1)
    end,
  },
  eval_metric_fn = function(_, margins)
    return { accuracy = torch.stack(margins):gt(0):double():mean():item() }
  end,
}
show "After the training"
lora.save_pretrained(o.workdir .. "/adapter", trainer.params,
  { task_type = "CAUSAL_LM", base_model_name_or_path = path })
deployer:log_info("the adapter is in " .. o.workdir .. "/adapter")
