-- A training step of a model of a known size, or with --mode=generate greedy generation by it, for
-- GPUs. One JSON line. --export=/folder writes the weights, as Hugging Face's models have them, and
-- the tokens, for runs of other programs from them. --model=tiny is for a CPU.
local clock = require "clock"
local redco = require "redco"
local torch = redco.torch

local o = redco.options {
  mode = "train", model = "tiny", batch = 8, seq = 64, steps = 10, warmup = 3, dropout = 0,
  compute_dtype = "bfloat16", prompt = 128, new = 256, cache = "dynamic", export = "", workdir = "",
}
local device = torch.cuda.is_available() and "cuda" or "cpu"
local configs = {
  tiny = { model_type = "llama", vocab_size = 512, hidden_size = 64, intermediate_size = 176,
    num_hidden_layers = 2, num_attention_heads = 4, num_key_value_heads = 2 },
  gpt2 = { model_type = "gpt2" },
  gpt2_medium = { model_type = "gpt2", n_embd = 1024, n_layer = 24, n_head = 16 },
  tinyllama = { model_type = "llama", vocab_size = 32000, hidden_size = 2048,
    intermediate_size = 5632, num_hidden_layers = 22, num_attention_heads = 32,
    num_key_value_heads = 4 },
  llama32_1b = { model_type = "llama", vocab_size = 128256, hidden_size = 2048,
    intermediate_size = 8192, num_hidden_layers = 16, num_attention_heads = 32,
    num_key_value_heads = 8, max_position_embeddings = 8192, tie_word_embeddings = true,
    rope_theta = 500000 },
}
local config = configs[o.model] or error("unknown model: " .. o.model)
if config.model_type == "gpt2" then
  for _, name in ipairs { "embd_pdrop", "resid_pdrop", "attn_pdrop" } do
    config[name] = o.dropout
  end
end
local generator = torch.Generator(1)
local model = redco.models.from_config(config, { generator = redco.Rng(0) })
local vocab_size = model.config.vocab_size

-- Some tokens come often, as in a text.
local function tokens(n, length)
  return torch.rand({ n, length }, { generator = generator }):pow(3):mul(vocab_size):long()
end

local function synchronize()
  if device == "cuda" then torch.cuda.synchronize() end
end

local function generate()
  local params = redco.tree.map(function(t) return t:to(o.compute_dtype):to(device) end,
    model.params)
  local ids = tokens(o.batch, o.prompt)
  if o.export ~= "" then
    model.save_pretrained(o.export)
    torch.save({ prompt = ids }, o.export .. "/tokens.safetensors")
  end
  local inputs, sequences = { input_ids = ids:to(device) }, nil
  local function seconds_of(n)
    synchronize()
    local from = clock.now()
    sequences = model.generate(params, inputs,
      { min_new_tokens = n, max_new_tokens = n, pad_token_id = 0, cache_implementation = o.cache })
    return clock.now() - from
  end
  seconds_of(8)
  local first, all = {}, {}
  for i = 1, 3 do first[i], all[i] = seconds_of(1), seconds_of(o.new) end
  local prefill = clock.median(first)
  local per_token = (clock.median(all) - prefill) / (o.new - 1)
  print(('{"name": "model_generate", "model": "%s", "device": "%s", "batch": %d, '
    .. '"tokens_per_s": %.1f, "ms_per_token": %.3f, "prefill_ms": %.2f, "ids": "%s"}'):format(
    o.model, device, o.batch, o.batch / per_token, per_token * 1e3, prefill * 1e3,
    table.concat(sequences[0]:narrow(0, o.prompt, math.min(8, o.new)):tolist(), " ")))
end

local function train()
  local n_steps = o.warmup + o.steps
  local ids = tokens(n_steps * o.batch, o.seq + 1)
  if o.export ~= "" then
    model.save_pretrained(o.export)
    torch.save({ tokens = ids }, o.export .. "/tokens.safetensors")
  end
  local examples, losses, starts = {}, {}, {}
  for i = 1, n_steps * o.batch do examples[i] = i end
  local workdir = o.workdir ~= "" and o.workdir or os.tmpname()
  if o.workdir == "" then os.remove(workdir) end
  local trainer = redco.Trainer {
    deployer = redco.Deployer { seed = 0, device = device, workdir = workdir, verbose = false },
    collate_fn = function(batch)  -- in the order of the peer's
      if #starts == o.warmup then synchronize() end
      starts[#starts + 1] = clock.now()
      local rows = ids:narrow(0, (#starts - 1) * o.batch, #batch)
      return { input_ids = rows:narrow(1, 0, o.seq), labels = rows:narrow(1, 1, o.seq) }
    end,
    loss_fn = function(rng, _, params, batch, is_training)
      local loss, count = model.loss(params, batch, { train = is_training, rng = rng })
      losses[#losses + 1] = loss:detach()
      return loss, count
    end,
    params = model.params, compute_dtype = o.compute_dtype,
    optimizer = redco.optim.chain { redco.optim.clip_by_global_norm(1),
      redco.optim.adamw { learning_rate = 1e-4, weight_decay = 0.1 } },
  }
  trainer:fit { train_examples = examples, per_device_batch_size = o.batch, n_epochs = 1 }
  synchronize()
  local seconds = (clock.now() - starts[o.warmup + 1]) / o.steps
  local metrics
  for line in io.lines(workdir .. "/metrics.jsonl") do
    if line:find "step_seconds" then metrics = line end
  end
  local function metric(name) return tonumber(metrics:match('"' .. name .. '": ?([%d.e+-]+)')) end
  if o.workdir == "" then os.execute(("rm -rf '%s'"):format(workdir)) end
  print(('{"name": "model_step", "model": "%s", "device": "%s", "batch": %d, "seq": %d, '
    .. '"tokens_per_s": %.1f, "step_ms": %.2f, "mfu": %.4f, "peak_memory_gb": %.2f, '
    .. '"compute_dtype": "%s", "loss_first": %.5f, "loss_last": %.5f}'):format(
    o.model, device, o.batch, o.seq, o.batch * o.seq / seconds, seconds * 1e3, metric "mfu" or 0,
    metric "peak_memory_bytes" / 1e9, o.compute_dtype, losses[1]:item(), losses[#losses]:item()))
end

if o.mode == "generate" then generate() else train() end
