-- One training step of each model sends the bytes that Megatron would (arXiv 1909.08053; 2205.05198
-- under sequence parallelism), and a few numbers. Each row of a budget says what must move and why.
-- Two processes; four for the groups of zero.
local redco = require "redco"
local testing = require "testing"
local torch = require "redco.torch"
local traffic = require "traffic"

local test, tree = testing.test, redco.tree
local number, long = 4, 8  -- bytes

local n_processes = tonumber(os.getenv "WORLD_SIZE")

-- Fewer tokens than the vocabulary has: with more, the gradient of the table is the smaller sum,
-- and moves in place of that of what was looked up.
local batch_size = n_processes

--- Trains a model of this folder; returns a function that makes a step, and the trainer. `more`:
--- train_step_fn, compute_dtype, has_rules.
local function prepare(name, options, more)
  options.seed, options.verbose = 7, false
  more = more or {}
  local deployer = redco.Deployer(options)
  local task = require(name)(torch.Generator(5), {
    n_examples = batch_size, dtype = "float32", dropout = 0, n_kv_heads = 2,
  })
  local optimizer = redco.optim.chain {
    redco.optim.clip_by_global_norm(0.01), redco.optim.adamw { learning_rate = 0.01 },
  }
  if task.is_frozen then optimizer = redco.optim.freeze(optimizer, task.is_frozen) end
  local trainer = redco.Trainer {
    deployer = deployer, params = task.params, collate_fn = task.collate_fn,
    loss_fn = task.loss_fn, optimizer = optimizer, train_step_fn = more.train_step_fn,
    compute_dtype = more.compute_dtype,
    params_sharding_rules = more.has_rules and task.params_sharding_rules or nil,
  }
  return function()
    trainer:train {
      examples = task.examples,
      per_device_batch_size = batch_size / (deployer.mesh.dp * deployer.mesh.dp_replicate),
    }
  end, trainer
end

--- The rows of budgets, added up by kind.
local function total(...)
  local sums = {}
  for _, rows in ipairs { ... } do
    for _, row in ipairs(rows) do
      local kind, count, bytes = unpack(row)
      local sum = sums[kind] or { 0, 0 }
      sums[kind] = { sum[1] + count, sum[2] + count * bytes }
    end
  end
  return sums
end

local n_layers, width = 2, 16

-- Numbers in an activation: whole, and a process' part of its sequence, the longer one.
local function stream(length)
  return {
    whole = batch_size * length * width * number,
    part = batch_size * math.ceil(length / 2) * width * number,
  }
end

local models = {
  gpt = { n_gradients = 28, n_rows = batch_size * 6, stream(6) },
  llama = { n_gradients = 21, n_rows = batch_size * 6, stream(6), n_norms = 2 * n_layers + 1 },
  -- The encoder's stream and the decoder's.
  t5 = {
    n_gradients = 47, n_rows = batch_size * 5, stream(7), stream(5),
    n_norms = 5 * n_layers + 2,
  },
  conv = { n_gradients = 14, n_rows = batch_size },
}

--- Beside what the layers move, of a vocabulary or classes that are split over mp.
local function of_split_loss(model)
  if model == models.conv then return {} end  -- its five classes are whole
  local rows = {
    { "all_gather", 1, model.n_rows * number, "the logarithm of each row's sum over a part" },
  }
  if model == models.gpt then  -- whose head and loss are one operator
    rows[2] = { "all_reduce", 1, number, "the loss" }
  else
    rows[2] = { "all_reduce", 1, 2 * number, "the loss and the number of labels" }
    rows[3] = { "all_reduce", 1, model.n_rows * number, "a sum over each row's gradient" }
  end
  return rows
end

local function of_norms(model)
  return { { "all_reduce", 1, model.n_gradients * number, "the norms of the gradients' parts" } }
end

-- An operator's input that several weights read - q, k and v, or gate and up - counts once: its
-- gradient is added up before it is reduced.
local tensor_parallel = {
  gpt = function(x)
    return {
      { "all_reduce", 1, x.whole, "rows of the split table" },
      { "all_reduce", 2 * n_layers, x.whole, "what attention and feed-forward put out" },
      { "all_reduce", 2 * n_layers, x.whole, "the gradients of what goes into them" },
      { "all_reduce", 1, x.whole, "the gradient of what goes into the head" },
    }
  end,
  t5 = function(encoder, decoder)
    return {
      { "all_reduce", 1, encoder.whole, "rows of the split table" },
      { "all_reduce", 2 * n_layers, encoder.whole, "self-attention, feed-forward" },
      { "all_reduce", 2 * n_layers, encoder.whole, "gradients" },
      { "all_reduce", 1, encoder.whole, "that of what all the keys and values are made of" },
      { "all_reduce", 1, decoder.whole, "rows of the split table" },
      { "all_reduce", 3 * n_layers, decoder.whole, "self- and cross-attention, feed-forward" },
      { "all_reduce", 3 * n_layers, decoder.whole, "gradients" },
      { "all_reduce", 1, decoder.whole, "the gradient of what goes into the head" },
    }
  end,
  -- `stem` and `second` split their outputs, `first` and `down` their inputs. The head is little,
  -- and whole.
  conv = function()
    local large = batch_size * 8 * 6 * 6 * number
    return {
      { "all_reduce", 1, large, "what `first` puts out" },
      { "all_reduce", 1, large / 2, "what `down` puts out, twice as wide at a quarter of places" },
      { "all_reduce", 1, large, "the gradient of what goes into `second`" },
    }
  end,
}
tensor_parallel.llama = tensor_parallel.gpt

-- Tensors split along their sequence are gathered where they are read, and saved split: backward
-- gathers them again. A gather sends half of what an all-reduce sends, and so does a scatter.
local sequence_parallel = {
  gpt = function(x)
    return {
      { "reduce_scatter", 1, x.part, "rows of the split table" },
      { "all_gather", 2 * n_layers, x.part, "what goes into attention and feed-forward" },
      { "reduce_scatter", 2 * n_layers, x.part, "what they put out" },
      -- Once: GPT-2's gradients are made with the loss, and at LLaMA's it still is what moved last.
      { "all_gather", 1, x.part, "what goes into the head" },
      { "reduce_scatter", 1, x.part, "the gradient of that" },
      { "all_gather", 2 * n_layers, x.part, "gradients of what was put out" },
      { "all_gather", 2 * n_layers, x.part, "what went in, for the weights' gradients" },
      { "reduce_scatter", 2 * n_layers, x.part, "gradients of what went in" },
      { "all_gather", 1, x.part, "for the gradient of the table" },
    }
  end,
  t5 = function(encoder, decoder)
    return {
      { "reduce_scatter", 1, encoder.part, "rows of the split table" },
      { "all_gather", 2 * n_layers, encoder.part, "what goes into the layers" },
      { "reduce_scatter", 2 * n_layers, encoder.part, "what they put out" },
      { "all_gather", n_layers, encoder.part, "what keys and values are made of" },
      { "reduce_scatter", 1, decoder.part, "rows of the split table" },
      { "all_gather", 3 * n_layers, decoder.part, "what goes into the layers" },
      { "reduce_scatter", 3 * n_layers, decoder.part, "what they put out" },
      { "all_gather", 1, decoder.part, "what goes into the head" },
      { "reduce_scatter", 1, decoder.part, "the gradient of that" },
      { "all_gather", 3 * n_layers, decoder.part, "gradients of what was put out" },
      { "all_gather", 3 * n_layers, decoder.part, "what went in" },
      { "reduce_scatter", 3 * n_layers, decoder.part, "gradients of what went in" },
      { "all_gather", n_layers, encoder.part, "what keys and values were made of" },
      { "all_gather", 1, decoder.part, "for the gradient of the table" },
      { "reduce_scatter", 1, encoder.part, "the gradient of what the decoder reads" },
      { "all_gather", 2 * n_layers, encoder.part, "gradients of what was put out" },
      { "all_gather", 2 * n_layers, encoder.part, "what went in" },
      { "reduce_scatter", 2 * n_layers, encoder.part, "gradients of what went in" },
      { "all_gather", 1, encoder.part, "for the gradient of the table" },
    }
  end,
  conv = tensor_parallel.conv,  -- there is no sequence
}
sequence_parallel.llama = sequence_parallel.gpt

--- Of weights that are whole, while the activations they meet are split along their sequence.
local function of_whole_weights(name)
  local model, n_norms = models[name], 2 * n_layers + 1
  if name ~= "gpt" then
    return model.n_norms
      and { { "all_reduce", 1, model.n_norms * width * number, "the RMS norms' weights" } } or {}
  end
  return {
    { "all_reduce", 1, (2 * n_norms + 2 * n_layers) * width * number,
      "layer norms, and the biases of what is put out" },
    -- The positions, summed over the batch.
    { "all_gather", 1, stream(6).part / batch_size, "the gradient of the position table" },
  }
end

local names = { "gpt", "llama", "t5", "conv" }
local on_two = n_processes == 2 and names or {}

for _, name in ipairs(on_two) do
  local model = models[name]
  test(name .. " on 1x2", function()
    local step = prepare(name, { n_model_shards = 2 })
    step()  -- lays it out
    traffic.expect_only(traffic.sent("mp", step), total(tensor_parallel[name](unpack(model)),
      of_split_loss(model), of_norms(model)))
  end)
  test(name .. " on 1x2, sequence parallel", function()
    local step = prepare(name, { n_model_shards = 2, sequence_parallel = true })
    step()
    traffic.expect_only(traffic.sent("mp", step), total(sequence_parallel[name](unpack(model)),
      of_split_loss(model), of_whole_weights(name), of_norms(model)))
  end)
end

-- A UNet by its rules: per picture there are 64 places with 16 channels outside, and 16 places with
-- 32 inside. The second of two convolutions, and the last products of attention and feed-forward,
-- sum parts. Outside, attention is little, and whole.
local function of_unet()
  local outer, inner = batch_size * 64 * 16 * number, batch_size * 16 * 32 * number
  local time = 64 * number
  return {
    { "all_reduce", 3, outer, "outputs of residual blocks" },
    { "all_reduce", 5, inner, "the same inside" },
    { "all_reduce", 3, 2 * outer, "gradients of their inputs: 16, 32 and 48 channels" },
    { "all_reduce", 5, 6 / 5 * inner, "the same inside: 16, 32, 32, 48 and 64 channels" },
    { "all_reduce", 3, outer, "feed-forward" },
    { "all_reduce", 3, outer, "the gradient of its input" },
    { "all_reduce", 3, inner, "attention to itself, attention to the text, feed-forward inside" },
    { "all_reduce", 3, inner, "gradients of their inputs" },
    { "all_reduce", 1, time, "the output of the time's layers" },
    { "all_reduce", 8, time, "its gradient, from each residual block" },
  }
end

if n_processes == 2 then
  local function sent_by_unet(has_rules)
    local step, trainer = prepare("unet", { n_model_shards = 2 }, { has_rules = has_rules })
    step()
    local memory = trainer:memory().params
    return traffic.sent("mp", step), memory.here / memory.whole, #tree.leaves(trainer.params)
  end
  test("unet on 1x2, with and without its rules", function()
    local by_rules, held_by_rules, n_params = sent_by_unet(true)
    local expected = total(of_unet(), of_norms { n_gradients = n_params })
    traffic.expect_only(by_rules, expected)
    local n_bytes, n_expected = 0, 0
    local found, held = sent_by_unet(false)
    for _, sent in pairs(found) do n_bytes = n_bytes + sent.bytes end
    for _, sum in pairs(expected) do n_expected = n_expected + sum[2] end
    local text = ("found: %d bytes, %.3f held; by rules: %d, %.3f"):format(
      n_bytes, held, n_expected, held_by_rules)
    assert(n_bytes <= 1.1 * n_expected and held < held_by_rules + 0.01, text)
  end)
end

--- The collectives that data parallelism adds for gradients.
local function of_split_batch(name)
  local rows = {
    { "all_reduce", 1, long, "the number of labels, the weight of the loss" },
    { "all_reduce", 1, (name == "gpt" and 1 or 2) * number, "the loss, and what it is divided by" },
  }
  if name ~= "conv" then return rows end
  -- Batch norm's statistics are those of the global batch: two numbers a channel, in float64.
  for _, n_channels in ipairs { 8, 8, 8, 16 } do
    rows[#rows + 1] = { "all_reduce", 1, 2 * n_channels * 2 * number, "mean and variance" }
    -- Which are the gradients of the weight and the bias: those move no more.
    rows[#rows + 1] = { "all_reduce", 1, 2 * n_channels * number, "their gradients" }
  end
  return rows
end

--- Whether the gradient of this parameter has still to be reduced after backward.
local function is_reduced(model, path)
  return model ~= "conv" or not path:find(".norm.", 1, true)
end

for _, name in ipairs(on_two) do
  test(name .. " on 2x1", function()
    local step, trainer = prepare(name, {})
    step()  -- the first learns the order of the gradients
    local bytes = 0
    local params = tree.leaves(trainer.params)
    for i, path in ipairs(tree.paths(trainer.params)) do
      if is_reduced(name, path) then bytes = bytes + params[i]:numel() * number end
    end
    traffic.expect_only(traffic.sent("dp", step), total(of_split_batch(name),
      { { "all_reduce", 1, bytes, "each gradient once, all in one piece" } }))
  end)
end

-- Queries and results have four heads; keys and values two in LLaMA, four in T5 and GPT.
local attentions = {
  gpt = function(x) return { { 4 * n_layers, x } } end,
  llama = function(x) return { { 2 * n_layers, x }, { 2 * n_layers, x / 2 } } end,
  -- Of the encoder's length, of the decoder's, and of both.
  t5 = function(encoder, decoder)
    return { { 4 * n_layers, encoder }, { 4 * n_layers, decoder },
      { 2 * n_layers, encoder }, { 2 * n_layers, decoder } }
  end,
}

-- Half of a process' part goes to the other one, in forward, and back in backward.
local function of_attention(name)
  local parts, rows = {}, {}
  for i, x in ipairs(models[name]) do parts[i] = x.part / 2 end
  for i, row in ipairs(attentions[name](unpack(parts))) do
    rows[i] = { "all_to_all", 2 * row[1], row[2], "positions, for heads" }
  end
  return rows
end

-- Each process makes a part of the gradient of these tables: of its positions, or of its heads.
local tables_in_parts = { gpt = "wpe", t5 = "relative" }

for _, name in ipairs(n_processes == 2 and { "gpt", "llama", "t5" } or {}) do
  test(name .. " on two context shards", function()
    local step, trainer = prepare(name, { n_context_shards = 2 })
    step()
    local rows, summed = {}, 0
    for path, param in pairs(trainer.params) do
      local bytes = param:numel() * number
      if path:find(tables_in_parts[name] or "^$") then
        rows[#rows + 1] = { "all_gather", 1, bytes / 2, "the other half of the gradient" }
      else
        summed = summed + bytes
      end
    end
    rows[#rows + 1] = { "all_reduce", 1, summed, "each gradient once, all in one piece" }
    traffic.expect_only(traffic.sent("cp", step), total(of_attention(name), of_split_batch(name),
      rows))
  end)
end

for _, name in ipairs(n_processes == 2 and { "gpt", "llama", "t5" } or {}) do
  test(name .. " in bfloat16 on 1x2", function()
    local step = prepare(name, { n_model_shards = 2 }, { compute_dtype = "bfloat16" })
    step()
    local count, bytes = unpack(total(tensor_parallel[name](unpack(models[name]))).all_reduce)
    -- The norms' weights send nothing: their gradients are made of gradients that were reduced.
    traffic.expect_only(traffic.sent("mp", step), total(
      { { "all_reduce", count, bytes / 2 / count, "activations, in bfloat16" } },
      of_split_loss(models[name]), of_norms(models[name])))
  end)
end

if n_processes == 2 then
  test("gpt in bfloat16 on 2x1", function()
    local step, trainer = prepare("gpt", {}, { compute_dtype = "bfloat16" })
    step()
    local params, summed, n_summed = trainer.params, 0, 0
    for path, param in pairs(params) do  -- biases, and the embedding of positions
      if path:find "wpe" or path:find "bias" and not path:find "ln_" then
        summed, n_summed = summed + param:numel() * number, n_summed + 1
      end
    end
    local head = params["transformer.wte.weight"]:numel() * number
    traffic.expect_only(traffic.sent("dp", step), total(of_split_batch "gpt", {
      { "all_reduce", n_summed, summed / n_summed, "sums, made before they are rounded" },
      { "all_reduce", 1, head, "the head's, for the same reason" },
      { "all_reduce", 1, tree.count(params) * number - summed, "the others, in one piece" },
    }))
  end)
end

-- The blocks that forward reads, in this order, and those that backward reads and does not find
-- where forward left them.
local blocks = {
  gpt = {
    { "wte", "wpe", "h.0", "h.1", "ln_f", "wte" },  -- the table is the head
    { "ln_f", "h.1", "h.0" },
  },
  llama = { { "embed_tokens", "layers.0", "layers.1", "^norm", "lm_head" },
    { "^norm", "layers.1", "layers.0" } },
  t5 = {
    {
      "shared", "encoder.relative", "encoder.block.0", "encoder.block.1", "encoder.final",
      "shared", "decoder.relative", "decoder.block.0", "decoder.block.1", "decoder.final", "shared",
    },
    {
      "decoder.final", "decoder.block.1", "decoder.block.0",
      "encoder.final", "encoder.block.1", "encoder.block.0",
    },
  },
  conv = { { "stem", "first", "second", "down", "head" }, { "down", "second", "first", "stem" } },
}

--- The bytes of a process' part, the longest, and whether there are parts.
local function shared(param)
  local dim = tostring(param:placement().dp):match "^shard%((%d+)"
  if not dim then return param:numel() * number, false end
  local size = param:size(tonumber(dim))
  return param:numel() / size * math.ceil(size / 2) * number, true
end

--- The collectives of a step with zero = 3 among the processes that share the parameters.
local function of_stored(name, params, paths)
  local rows, scattered, whole = {}, 0, 0
  for i, path in ipairs(paths) do
    local bytes, is_shared = shared(params[i])
    if is_shared then
      scattered = scattered + bytes
    elseif is_reduced(name, path) then
      whole = whole + bytes
    end
  end
  for _, pass in ipairs(blocks[name]) do
    for _, block in ipairs(pass) do
      local gathered = 0
      for i, path in ipairs(paths) do
        local bytes, is_shared = shared(params[i])
        if is_shared and path:find(block) then gathered = gathered + bytes end
      end
      assert(gathered > 0, block)
      rows[#rows + 1] = { "all_gather", 1, gathered, block }
    end
  end
  rows[#rows + 1] = { "reduce_scatter", 1, scattered, "each gradient, to who updates it" }
  if whole > 0 then rows[#rows + 1] = { "all_reduce", 1, whole, "those of small parameters" } end
  return total(rows, of_split_batch(name), of_norms(models[name]))
end

--- And between the groups that hold copies of them.
local function between_copies(name, params, paths)
  local rows, parts, whole = {}, 0, 0
  for i, path in ipairs(paths) do
    local _, is_shared = shared(params[i])
    local bytes = params[i]:to_local():numel() * number
    if is_shared then
      parts = parts + bytes
    elseif is_reduced(name, path) then
      whole = whole + bytes
    end
  end
  if whole > 0 then rows[1] = { "all_reduce", 1, whole, "gradients of small parameters" } end
  rows[#rows + 1] = { "all_reduce", 1, parts, "of the others, the part that each process updates" }
  return total(rows, of_split_batch(name))
end

for _, name in ipairs(names) do
  test(("%s on %dx1, zero = 3"):format(name, n_processes), function()
    -- The running statistics of batch norm are written to in forward: better whole.
    local step, trainer = prepare(name, { zero = 3, zero_min_size = name == "conv" and 64 or 1,
      zero_group = 2 })
    step()
    step()  -- the first learned the order of the parameters
    local params, paths = tree.leaves(trainer.params), tree.paths(trainer.params)
    local between
    traffic.expect_only(traffic.sent("dp", function()
      between = traffic.sent("dp_replicate", step)
    end), of_stored(name, params, paths))
    traffic.expect_only(between, n_processes == 2 and {} or between_copies(name, params, paths))
  end)
end

-- A mesh of three dimensions: its copies split the batch, and gather no activations.
for _, name in ipairs(n_processes == 4 and { "gpt", "llama", "t5" } or {}) do
  test(name .. " on 2x2, sequence parallel, in groups of one", function()
    local function of_step(options)
      options.n_model_shards, options.sequence_parallel = 2, true
      local step = prepare(name, options)
      step()
      local of_batch
      local of_model = traffic.sent("mp", function()
        of_batch = traffic.sent("dp_replicate", step)
      end)
      return of_model, of_batch
    end
    local expected = {}
    for kind, found in pairs(of_step {}) do expected[kind] = { found.count, found.bytes } end
    local of_model, of_batch = of_step { zero = 1, zero_group = 1 }
    traffic.expect_only(of_model, expected)
    testing.expect_equal(of_batch.all_gather.count, 0)
  end)
end

-- With gradients that lie as the parameters do nothing moves but norms, and those once, for
-- clipping and for what is shown.
for _, layout in ipairs {
  { "1x2", "mp", { n_model_shards = 2 } }, { "zero = 3", "dp", { zero = 3, zero_min_size = 1 } },
} do
  if n_processes > 2 then break end
  local title, group, options = unpack(layout)
  test("AdamW with clipping, " .. title, function()
    local found
    local function train_step_fn(_, trainer, _, defaults)
      local gradients = tree.map(function(param) return param * 0.5 end, trainer.params)
      found = traffic.sent(group, function() defaults.apply_gradients(gradients) end)
      return {}
    end
    local step = prepare("llama", options, { train_step_fn = train_step_fn })
    step()
    traffic.expect_only(found, total(of_norms(models.llama)))
  end)
end

testing.finish()
