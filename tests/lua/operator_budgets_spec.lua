-- How many operators a script calls for a layer: on a GPU each takes the host some 10 microseconds.
-- Counted in profiles of steps, of models that differ in their number of layers.
local redco = require "redco"
local testing = require "testing"

local torch = redco.torch
local test = testing.test

-- Returns the number of operators that a step calls, those that operators call not among them.
local function n_operators(name, params, step)
  local workdir = testing.folder() .. "/" .. name
  local trainer = redco.Trainer {
    deployer = redco.Deployer { seed = 1, verbose = false, workdir = workdir }, params = params,
    collate_fn = redco.data.default_collate, loss_fn = function() error "not called" end,
    train_step_fn = function(_, state, _, defaults) return step(state, defaults) or {} end,
    optimizer = redco.optim.sgd { learning_rate = 1e-3 }, compute_dtype = "float64",
  }
  trainer:fit {
    train_examples = { { x = 1 }, { x = 2 }, { x = 3 } }, per_device_batch_size = 1, n_epochs = 1,
    profile = { steps = { 2, 2 } },
  }
  local events = {}
  for _, event in ipairs(redco.data.json(workdir .. "/profile_step2-2.json").traceEvents) do
    local is_operator = event.name:find "^aten::" or event.name:find "^redco::"
    if is_operator and event.ph == "X" then events[#events + 1] = event end
  end
  table.sort(events, function(a, b) return a.ts < b.ts or a.ts == b.ts and a.dur > b.dur end)
  local n, last = 0, -math.huge
  for _, event in ipairs(events) do
    if event.ts >= last then n, last = n + 1, event.ts + event.dur end
  end
  return n
end

local configs = {
  llama = { model_type = "llama", vocab_size = 64, hidden_size = 32, intermediate_size = 48,
    num_attention_heads = 4, num_key_value_heads = 2 },
  gpt2 = { model_type = "gpt2", vocab_size = 64, n_embd = 32, n_head = 4, n_positions = 64,
    embd_pdrop = 0, resid_pdrop = 0, attn_pdrop = 0 },
}

local function model_of(name, n_layers)
  local config = redco.tree.map(function(v) return v end, configs[name])
  config[name == "llama" and "num_hidden_layers" or "n_layer"] = n_layers
  -- In float64, for which CPUs have no kernels of few rows: as on a GPU.
  return redco.models.from_config(config, { generator = torch.Generator(1), dtype = "float64" })
end

-- Of a token and a layer.
local function of_decoding(name)
  local counts = {}
  for i, n_layers in ipairs { 1, 3 } do
    for k, n_tokens in ipairs { 4, 8 } do
      local model = model_of(name, n_layers)
      counts[#counts + 1] = n_operators(("%s%d%d"):format(name, i, k), model.params, function()
        torch.no_grad(model.generate, model.params,
          { input_ids = torch.ones({ 1, 4 }, { dtype = "int64" }) },
          { min_new_tokens = n_tokens, max_new_tokens = n_tokens, pad_token_id = 0 })
      end)
    end
  end
  local of_token = { (counts[2] - counts[1]) / 4, (counts[4] - counts[3]) / 4 }
  return (of_token[2] - of_token[1]) / 2, of_token[1]
end

-- Of a layer, forward and backward.
local function of_training(name)
  local counts = {}
  local ids = torch.ones({ 2, 8 }, { dtype = "int64" })
  for i, n_layers in ipairs { 1, 3 } do
    local model = model_of(name, n_layers)
    counts[i] = n_operators(("%s training %d"):format(name, i), model.params, function(_, defaults)
      defaults.value_and_grad(function(params)
        return (model.loss(params, { input_ids = ids, labels = ids }, { train = true }))
      end)
    end)
  end
  return (counts[2] - counts[1]) / 2
end

for name, budget in pairs { llama = 98, gpt2 = 70 } do
  test(name .. ": a layer in training", function()
    local n = of_training(name)
    assert(n <= budget, ("%g operators a layer"):format(n))
  end)
end

for name, budget in pairs { llama = { 31, 69 }, gpt2 = { 25, 51 } } do
  test(name .. ": a token", function()
    local of_layer, of_token = of_decoding(name)
    assert(of_layer <= budget[1] and of_token <= budget[2],
      ("%g operators a layer, and %g with one layer"):format(of_layer, of_token))
  end)
end

testing.finish()
