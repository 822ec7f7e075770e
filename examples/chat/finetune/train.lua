-- Teaches a chat model to answer as others did, by low-rank adapters: all else stays as it is.
local redco = require "redco"
local torch = redco.torch

local o = redco.options {
  model = "",  -- a GGUF file or a model folder; "": SmolLM2-135M-Instruct, fetched the first time
  quantize = "",  -- the type of quantized weights, "nf4"; "": as in the file; "floats": none
  data = "",  -- JSON lines with "question" and "answer"; "": The Devil's Dictionary, beside this
  workdir = "workdir",
  resume = false,  -- continue from the newest checkpoint of workdir, if there is one
  seed = 42,
  n_model_shards = 1,
  zero = 0,
  n_epochs = 1,
  max_steps = 0,  -- more than 0 ends the run early
  global_batch_size = 8,
  per_device_batch_size = 8,
  compute_dtype = "float32",
  learning_rate = 1e-3,
  max_length = 64,  -- of tokens; longer conversations are left out
  target_modules = { "q_proj", "v_proj" },
  r = 8,
  lora_alpha = 16,
  lora_dropout = 0.05,
  n_samples = 3,  -- held-out questions to answer at the end
}

local here = redco.script_folder()
local path = o.model ~= "" and o.model
  or assert(io.popen("'" .. here .. "../fetch.sh'"):read "*l", "fetch.sh found no model")
local tokenizer = redco.Tokenizer.from_pretrained(path)

local records = o.data ~= "" and redco.data.jsonl(o.data)
  or redco.data.jsonl(here .. "data/devil.jsonl"):map(function(entry)
    return { question = ("Define: %s, %s"):format(entry.word, entry.pos),
      answer = entry.definition }
  end)
local held_in, held_out = redco.data.split(records, { every = 20 })

local deployer = redco.Deployer {
  seed = o.seed, n_model_shards = o.n_model_shards, zero = o.zero, workdir = o.workdir,
}

local function conversations(set)
  local with_messages = set:map(function(record)
    return { messages = { { role = "user", content = record.question },
      { role = "assistant", content = record.answer } } }
  end)
  return redco.data.conversations(with_messages, { tokenizer = tokenizer, deployer = deployer,
    max_length = o.max_length })
end
local train, test = conversations(held_in), conversations(held_out)

local quantize = o.quantize ~= "" and o.quantize or nil
if quantize == "floats" then quantize = false end
local model = redco.models.from_pretrained(path, { quantize = quantize })
local params = redco.lora.add(model.params, {
  target_modules = o.target_modules, r = o.r, lora_alpha = o.lora_alpha,
  lora_dropout = o.lora_dropout, generator = deployer:gen_rng(),
})

local schedule = deployer:get_lr_schedule_fn {
  train_size = #train, n_epochs = o.n_epochs, learning_rate = o.learning_rate,
  global_batch_size = o.global_batch_size, per_device_batch_size = o.per_device_batch_size,
  schedule_type = "linear", warmup_ratio = 0.1,
}
local ckpt, info
if o.resume then ckpt, info = deployer:load_last_ckpt { params = params } end

local trainer = redco.Trainer {
  deployer = deployer,
  collate_fn = redco.data.padding_collate {
    pad_token_id = tokenizer.pad_token_id, return_attention_mask = false,
  },
  loss_fn = model.loss_fn,
  params = ckpt and ckpt.params or params,
  opt_state = ckpt and ckpt.opt_state,
  last_ckpt_info = info,
  compute_dtype = o.compute_dtype,
  optimizer = redco.lora.freeze_base(redco.optim.adamw { learning_rate = schedule }),
  lr_schedule_fn = schedule,
}

-- The loss of the held-out conversations, and the model's answers to some of their questions.
local function show(title)
  local lines = { ("loss %.3f"):format(trainer:eval_loss {
    examples = test, per_device_batch_size = o.per_device_batch_size,
  }) }
  for i = 1, math.min(o.n_samples, #held_out) do
    local question = held_out[i].question
    local prompt = tokenizer:apply_chat_template({ { role = "user", content = question } },
      { add_generation_prompt = true })
    local inputs = { input_ids = torch.tensor({ prompt }, { dtype = "int64" }) }
    local ids = model.generate(trainer.params, inputs, { max_new_tokens = 60 })[0]
    local answer = ids:narrow(0, #prompt, ids:size(0) - #prompt)
    lines[#lines + 1] = question .. "\n" .. tokenizer:decode(answer, { skip_special_tokens = true })
  end
  deployer:log_info(table.concat(lines, "\n\n"), { title = title })
end

show "Before the training"
trainer:fit {
  train_examples = train,
  eval_examples = test,
  n_epochs = o.n_epochs,
  max_steps = o.max_steps,
  global_batch_size = o.global_batch_size,
  per_device_batch_size = o.per_device_batch_size,
}
show "After the training"
redco.lora.save_pretrained(o.workdir .. "/adapter", trainer.params,
  { task_type = "CAUSAL_LM", base_model_name_or_path = path })
deployer:log_info("the adapter is in " .. o.workdir .. "/adapter")
