-- Steps of a model in one layout: its memory and its time, for plan_accuracy.lua. A small training
-- comes first, so that what the program itself needs is not counted; `redco-lua plan --fit 2` plans
-- the other one. With --device=cuda the memory is what the GPU has in use at the end, the program's
-- own included, which the plan counts too. One JSON line.
local clock = require "clock"
local redco = require "redco"
local torch, nn = redco.torch, redco.nn

local o = redco.options {
  model = "gpt2", n_model_shards = 1, zero = 0, sequence_parallel = false, recompute = "none",
  batch = 2, length = 128, steps = 5, compute_dtype = "float32", device = "cpu",
  d_model = 128,  -- of small_t5
}
local deployer = redco.Deployer {
  seed = 1, n_model_shards = o.n_model_shards, zero = o.zero, verbose = false,
  sequence_parallel = o.sequence_parallel, device = o.device,
}
local is_gpu = o.device == "cuda" and torch.cuda.is_available()

local function language_model(sizes)
  return function(is_small)
    local config = {}
    for key, value in pairs(sizes) do config[key] = value end
    for key, value in pairs(is_small or {}) do config[key] = value end
    local model = redco.models.from_config(config, { generator = deployer:gen_rng() })
    local params = model.params
    model.params = nil  -- else these stay beside the Trainer's copies
    return params, function(_, _, p, batch, is_training)
      return model.loss(p, batch, { train = is_training })
    end, function(n)
      local ids = torch.full({ n, o.length }, 5, { dtype = "int64" })
      return { input_ids = ids, labels = ids }
    end
  end
end

local gpt2 = language_model { model_type = "gpt2", embd_pdrop = 0, resid_pdrop = 0, attn_pdrop = 0 }
local llama = language_model { model_type = "llama", vocab_size = 16000, hidden_size = 768,
  intermediate_size = 2048, num_hidden_layers = 8, num_attention_heads = 12,
  num_key_value_heads = 4, max_position_embeddings = 2048 }
local t5 = language_model { model_type = "t5", vocab_size = 32128, d_model = 512, d_ff = 2048,
  d_kv = 64, num_heads = 8, num_layers = 6, num_decoder_layers = 6, dropout_rate = 0,
  pad_token_id = 0, decoder_start_token_id = 0 }

local function convolutions(is_small)
  local rng, sizes = deployer:gen_rng(), is_small and { 3, 8 } or { 3, 64, 128, 256, 512 }
  local params = { layers = {} }
  for i = 1, #sizes - 1 do
    params.layers[i] = {
      conv = nn.Conv2d(sizes[i], sizes[i + 1], 3, { generator = rng }),
      norm = nn.GroupNorm(sizes[i + 1]),
    }
  end
  params.head = nn.Linear(sizes[#sizes], 1000, { generator = rng })
  local images
  return params, function(_, _, p, batch)
    local x = batch.x
    for _, layer in ipairs(p.layers) do
      x = nn.conv2d(layer.conv, x, { padding = 1 })
      x = nn.group_norm(layer.norm, x, { num_groups = 8 }):relu()
      x = torch.max_pool2d(x, { 2, 2 })
    end
    return nn.cross_entropy(nn.linear(p.head, x:mean { 2, 3 }), batch.y)
  end, function(n)
    -- Pooling is faster if all pixels are alike.
    images = images or torch.rand({ n, 3, 64, 64 }, { generator = torch.Generator(1) })
    return { x = images, y = torch.ones({ n }, { dtype = "int64" }) }
  end
end

local models = {
  gpt2 = function(is_small)
    return gpt2(is_small and { n_embd = 64, n_layer = 1, n_head = 4, vocab_size = 512 })
  end,
  llama = function(is_small)
    return llama(is_small and { hidden_size = 48, num_hidden_layers = 1, vocab_size = 512,
      intermediate_size = 128 })
  end,
  t5 = function(is_small)
    return t5(is_small and { d_model = 64, d_ff = 128, num_layers = 1, num_decoder_layers = 1,
      d_kv = 8, vocab_size = 512 })
  end,
  small_t5 = function()
    return t5 { vocab_size = 64, d_model = o.d_model, d_ff = 2 * o.d_model, num_heads = 4,
      d_kv = o.d_model / 4 }
  end,
  conv = convolutions,
}
local make = models[o.model] or error("unknown model: " .. o.model)

local function train(is_small, n_steps, on_step)
  local params, loss_fn, batch_of = make(is_small)
  local n = o.batch * deployer.mesh.dp
  local examples = {}
  for i = 1, n * n_steps do examples[i] = i end
  local trainer = redco.Trainer {
    deployer = deployer, params = params, loss_fn = loss_fn, recompute = o.recompute,
    compute_dtype = o.compute_dtype, optimizer = redco.optim.adamw { learning_rate = 1e-4 },
    collate_fn = function(rows) return batch_of(#rows) end,
  }
  params = nil  -- luacheck: ignore (the Trainer's now)
  collectgarbage()
  trainer:fit { train_examples = examples, per_device_batch_size = o.batch, n_epochs = 1,
    on_step = on_step }
end

-- The memory in use: of the GPU, or of this process, of which pages shared with others count in
-- part.
local function memory_in_use()
  if is_gpu then
    local free, total = torch.cuda.mem_get_info()
    return total - free
  end
  for line in io.lines "/proc/self/smaps_rollup" do
    local kb = line:match "^Pss:%s+(%d+)"
    if kb then return tonumber(kb) * 1024 end
  end
end

train(true, 2)
collectgarbage()
collectgarbage()
local before = is_gpu and 0 or memory_in_use()
-- Reading the loss ends the step. In training the host of a GPU is ahead of it, so that its steps
-- are timed together, after the first four.
local n_first, n_calls, times, from = 4, 0, {}, nil
train(false, o.steps, function(event)
  n_calls = n_calls + 1
  if is_gpu and n_calls ~= n_first and n_calls < o.steps then return end
  local _ = event.metrics.loss
  local now = clock.now()
  if from then times[#times + 1] = (now - from) / (is_gpu and o.steps - n_first or 1) end
  from = now
end)
-- The program's malloc does not return memory: this is the peak.
local bytes, seconds = memory_in_use() - before, clock.median(times)
local results = deployer:alone(function() return { bytes = bytes, seconds = seconds } end)
if deployer.process_id == 0 then
  local most = 0
  for _, result in ipairs(results) do most = math.max(most, result.bytes) end
  print(('{"name": "plan_step", "bytes": %d, "seconds": %.4f}'):format(most, seconds))
  if is_gpu then
    print(('{"allocated": %d, "reserved": %d}'):format(torch.cuda.max_memory_allocated(),
      torch.cuda.max_memory_reserved()))
  end
end
