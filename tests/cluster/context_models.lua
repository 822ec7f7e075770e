-- Models with convolutions over positions that context shards split: the outputs and gradients are
-- those of one process, and a convolution gathers nothing. In two or four processes.
local redco = require "redco"
local testing = require "testing"
local tiny = require "tiny_models"

local torch = redco.torch
local n_processes = tonumber(os.getenv "WORLD_SIZE")

local function randn(...)
  return torch.randn({ ... }, { generator = torch.Generator(2), dtype = "float64" })
end

local function tokens(length)
  return torch.randint(3, 20, { 2, length }, { generator = torch.Generator(1) })
end

-- By model: its inputs, and the dimensions of their positions.
local function text() return { input_ids = tokens(64) }, { input_ids = 1 } end
local function samples() return { input_values = randn(2, 1024) }, { input_values = 1 } end
local inputs_of = {
  mamba = text, mamba2 = text, falcon_h1 = text, lfm2 = text, qwen3_next = text,
  wav2vec2 = samples, wavlm = samples,
  whisper = function(c)
    return { input_features = randn(2, c.num_mel_bins, 2 * c.max_source_positions),
      decoder_input_ids = tokens(8) }, { input_features = 2, decoder_input_ids = 1 }
  end,
  parakeet_ctc = function()
    return { input_features = randn(2, 256, 8) }, { input_features = 1 }
  end,
}

-- What exchanges or sums parts where positions are split.
local operators = { ["aten::convolution"] = true, ["aten::convolution_backward"] = true,
  ["aten::constant_pad_nd"] = true, ["aten::native_group_norm"] = true,
  ["aten::native_group_norm_backward"] = true }

local function bytes_of_operators()
  local gathered, exchanged = 0, 0
  for _, move in ipairs(redco.sharding_counters().moves) do
    if operators[move.what] and move.group == "cp" then
      gathered = gathered + (move.is_gather and move.bytes or 0)
      exchanged = exchanged + (move.is_gather and 0 or move.bytes)
    end
  end
  return gathered, exchanged
end

local function results(model, params, inputs)
  local y = model(params, inputs)
  if type(y) == "table" then y = y.logits or y.last_hidden_state or y[1] end
  local leaves, all = {}, { (y:detach():is_sharded() and y:full() or y):detach() }
  for name, p in pairs(params) do
    if p.requires_grad then leaves[#leaves + 1] = name end
  end
  (y * torch.arange(y:size(1), { dtype = "float64" }):view { 1, -1, 1 }:cos()):sum():backward()
  table.sort(leaves)
  for i, name in ipairs(leaves) do
    local grad = params[name].grad
    if grad then
      grad = (grad:is_sharded() and grad:full() or grad):clone()
      params[name].grad = nil
    end
    all[i + 1] = grad or torch.zeros { 1 }
  end
  return all
end

-- Before there is a Deployer, which would spread the parameters over the processes.
local names, models = {}, {}
for name in pairs(inputs_of) do
  names[#names + 1], models[name] = name, tiny.new(name)
end
-- The parts of the tiny one are too short.
models.whisper = redco.models.from_config(
  tiny.merged(tiny.config "whisper", { max_source_positions = 32, vocab_size = 32 }),
  { generator = torch.Generator(3) })
table.sort(names)
redco.Deployer { seed = 1, n_context_shards = n_processes, verbose = false }

for _, name in ipairs(names) do
  testing.test(("%s on %d context shards"):format(name, n_processes), function()
    local model = models[name]
    local params = redco.tree.map(function(p)
      return p:is_floating_point() and p:detach():double():requires_grad_() or p
    end, model.params)
    local inputs, dims = inputs_of[name](model.config)
    local expected, parts = results(model, params, inputs), {}
    for key, t in pairs(inputs) do parts[key] = redco.shard(t, { cp = dims[key] }) end
    local gathered, exchanged = bytes_of_operators()
    local found = results(model, params, parts)
    for i, t in ipairs(expected) do testing.expect_close(found[i], t, 1e-8, 1e-10) end
    local gathered_then, exchanged_then = bytes_of_operators()
    testing.expect_equal(gathered_then, gathered)
    assert(exchanged_then > exchanged)
  end)
end

testing.finish()
