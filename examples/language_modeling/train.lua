-- A small GPT, byte by byte, from scratch; then text that it writes.
local redco = require "redco"
local torch = redco.torch

local o = redco.options {
  data = "",  -- a text file; "": the corpus beside this script
  workdir = "workdir",
  seed = 42,
  n_model_shards = 1,
  zero = 0,
  sequence_parallel = false,
  n_epochs = 4,
  max_steps = 0,  -- 0: all epochs
  global_batch_size = 8,
  per_device_batch_size = 8,
  compute_dtype = "float32",
  learning_rate = 4e-3,
  weight_decay = 0.1,
  length = 128,
  n_embd = 128,
  n_layer = 4,
  n_head = 4,
  dropout = 0.0,
  prompt = "LOVE, n.",
  n_generated = 300,
  temperature = 0.7,
}

local path = o.data ~= "" and o.data or (arg[0]:match "^(.*/)" or "./") .. "data/corpus_pd.txt"
local text = torch.frombuffer(redco.data.read(path), { dtype = "uint8" })

-- An example is `length` bytes and the byte that follows each; every twentieth is held out.
local train, test = {}, {}
for i = 0, math.floor((#text - 1) / o.length) - 1 do
  local set = i % 20 == 19 and test or train
  set[#set + 1] = text:narrow(0, i * o.length, o.length + 1)
end

local deployer = redco.Deployer {
  seed = o.seed, n_model_shards = o.n_model_shards, zero = o.zero,
  sequence_parallel = o.sequence_parallel, workdir = o.workdir,
}
local model = redco.models.from_config({
  model_type = "gpt2", vocab_size = 256, n_positions = o.length,
  n_embd = o.n_embd, n_layer = o.n_layer, n_head = o.n_head,
  embd_pdrop = o.dropout, resid_pdrop = o.dropout, attn_pdrop = o.dropout,
}, { generator = deployer:gen_rng() })

local schedule = deployer:get_lr_schedule_fn {
  train_size = #train, n_epochs = o.n_epochs, learning_rate = o.learning_rate,
  global_batch_size = o.global_batch_size, per_device_batch_size = o.per_device_batch_size,
  schedule_type = "cosine", warmup_ratio = 0.05,
}

local trainer = redco.Trainer {
  deployer = deployer,
  collate_fn = function(examples)
    local rows = torch.stack(examples):long()
    return { input_ids = rows:narrow(1, 0, o.length), labels = rows:narrow(1, 1, o.length) }
  end,
  loss_fn = function(rng, state, params, batch, is_training)
    return model.loss(params, batch, { train = is_training, rng = rng })
  end,
  params = model.params,
  compute_dtype = o.compute_dtype,
  optimizer = redco.optim.chain {
    redco.optim.clip_by_global_norm(1.0),
    redco.optim.adamw {
      learning_rate = schedule, betas = { 0.9, 0.95 }, weight_decay = o.weight_decay,
      mask = function(_, param) return param:dim() > 1 end,
    },
  },
  lr_schedule_fn = schedule,
}

trainer:fit {
  train_examples = train,
  eval_examples = test,
  n_epochs = o.n_epochs,
  max_steps = o.max_steps > 0 and o.max_steps or nil,
  global_batch_size = o.global_batch_size,
  per_device_batch_size = o.per_device_batch_size,
}

-- Draws one byte after another from what the model expects.
local function generate(params, prompt, n, rng)
  local bytes = { prompt:byte(1, -1) }
  for _ = 1, n do
    local first = math.max(1, #bytes - o.length + 1)
    local input_ids = torch.tensor({ { unpack(bytes, first) } })
    local logits = model(params, { input_ids = input_ids })[{ 0, -1 }]
    local probs = (logits / o.temperature):softmax(-1)
    bytes[#bytes + 1] = probs:multinomial(1, { generator = rng }):item()
  end
  return string.char(unpack(bytes))
end

local written = torch.no_grad(generate, trainer.params, o.prompt, o.n_generated, deployer:gen_rng())
deployer:log_info(written, { title = "Text that the model writes" })
